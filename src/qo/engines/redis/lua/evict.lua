-- ARGV = tasks: {id, version}...
-- Removes finished tasks that the archive has, unless they have changed since they were read. Each leaves a marker for a
-- minute, so that an `add` whose caller read the archive before the move does not create the task again.
-- Returns the ids of tasks that have changed, and the ids of tasks that are neither here nor marked.
local MARKER_TTL = 60 -- seconds; archived_engine.py relies on it
local changed, missing = {}, {}
for _, moved in ipairs(cmsgpack.unpack(ARGV[1])) do
  local id, version = moved[1], moved[2]
  local there = call('HMGET', task_key(id), 's', 'm')
  local t = there[1] and decode_state(there[1])
  if t and t.status >= COMPLETED and t.version == version then
    local group = call('HGET', task_key(id), 'b')
    if group then remove_later(batch_key(group), id) end
    call('UNLINK', task_key(id))
    call('HSET', task_key(id), 'm', '1')
    call('EXPIRE', task_key(id), MARKER_TTL)
    unindex_status(t.status, t.lane, id)
  elseif t then
    changed[#changed + 1] = id
  elseif not there[1] and not there[2] then
    missing[#missing + 1] = id
  end
end
write_indexes()
return {changed, missing}
