-- ARGV = per task: id, the note that says why. Out of every list; its hash stays as it is.
-- Its state may be what is damaged, so it does not tell which lists these are.
-- A build that does not know the newest format cannot tell its tasks from damaged ones.
local stored = call('HGET', P .. ':format', 'format')
if stored and tonumber(stored) > FORMAT then return written_by_newer() end
local lanes = call('SMEMBERS', P .. ':lanes')
for i = 1, #ARGV, 2 do
  local id = ARGV[i]
  call('ZREM', P .. ':delayed', id)
  call('ZREM', P .. ':leases', id)
  for _, lane in ipairs(lanes) do
    call('ZREM', P .. ':ready:' .. lane, id)
    for status = 0, 5 do call('ZREM', listed_key(status, lane), id) end
  end
  call('HSETNX', P .. ':notes', 'quarantine/tasks/' .. id, 'damaged-' .. id .. ' ' .. ARGV[i + 1])
end
