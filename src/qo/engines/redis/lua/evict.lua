-- ARGV = tasks: {id, version}...
-- Removes finished tasks that the archive has, unless they have changed since they were read. Each leaves a marker for a
-- minute, so that an `add` whose caller read the archive before the move does not create the task again.
local MARKER_TTL = 60 -- seconds
for _, moved in ipairs(cmsgpack.unpack(ARGV[1])) do
  local id, version = moved[1], moved[2]
  local s = call('HGET', task_key(id), 's')
  local t = s and decode_state(s)
  if t and t.status >= COMPLETED and t.version == version then
    call('UNLINK', task_key(id))
    call('HSET', task_key(id), 'm', '1')
    call('EXPIRE', task_key(id), MARKER_TTL)
    unindex_status(t.status, t.lane, id)
  end
end
write_indexes()
