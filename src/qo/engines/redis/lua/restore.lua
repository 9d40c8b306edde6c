-- ARGV = id, then fields and values of a finished task that was kept elsewhere. Does nothing if it is here.
local id, key = ARGV[1], task_key(ARGV[1])
if call('HEXISTS', key, 's') == 1 then return end
call('DEL', key)
call('HSET', key, unpack(ARGV, 2))
local t = decode(call('HGET', key, 's'))
list(t.status, t.lane, t.created_at, id)
move()
