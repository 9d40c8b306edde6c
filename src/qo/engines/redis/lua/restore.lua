-- ARGV = id, then fields and values of a finished task that was kept elsewhere. Does nothing if it is here.
local id, key = ARGV[1], task_key(ARGV[1])
if call('HEXISTS', key, 's') == 1 then return end
call('DEL', key)
call('HSET', key, unpack(ARGV, 2))
local t = decode(call('HGET', key, 's'))
call('ZADD', listed_key(t.status, t.lane), t.created_at, id)
if call('SADD', P .. ':lanes', t.lane) == 1 then call('SET', P .. ':lanes:tag', id) end
