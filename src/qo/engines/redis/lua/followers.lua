-- ARGV = ids. Answers for each the last task that follows it under its idempotency key, or nil.
return call('HMGET', P .. ':followers', unpack(cmsgpack.unpack(ARGV[1])))
