-- ARGV = id, then the fields and values of a finished task from the archive
-- Does nothing if the task is here.
local id, key = ARGV[1], task_key(ARGV[1])
if call('HEXISTS', key, 's') == 1 then return end
call('DEL', key)
call('HSET', key, unpack(ARGV, 2))
local t = decode_state(call('HGET', key, 's'))
local group = call('HGET', key, 'b')
if group then add_later(batch_key(group), t.created_at, id) end
index_status(t.status, t.lane, t.created_at, id)
write_indexes()
