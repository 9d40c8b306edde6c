-- ARGV = ids
-- Returns, for each first task under an idempotency key, the id of the last task under that key, or nil if it is the same.
return call('HMGET', PREFIX .. ':followers', unpack(cmsgpack.unpack(ARGV[1])))
