-- ARGV = tasks: {id, version}... They are kept elsewhere now: forget those that are still as they were read.
-- What is left for a minute tells `add` to look there, should the same id come again in this very moment.
local TRACE = 60 -- seconds
for _, moved in ipairs(cmsgpack.unpack(ARGV[1])) do
  local id, version = moved[1], moved[2]
  local s = call('HGET', task_key(id), 's')
  local t = s and decode(s)
  if t and t.status >= COMPLETED and t.version == version then
    call('UNLINK', task_key(id))
    call('HSET', task_key(id), 'm', '1')
    call('EXPIRE', task_key(id), TRACE)
    unlist(t.status, t.lane, id)
  end
end
move()
