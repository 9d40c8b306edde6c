-- ARGV = per task: id, the note that says why. Out of every list; its hash stays as it is.
-- Its state may be what is damaged, so it does not tell which lists these are.
-- A build that does not know the newest format cannot tell its tasks from damaged ones.
local stored = call('HGET', P .. ':format', 'format')
if stored and tonumber(stored) > FORMAT then return written_by_newer() end
local lanes = {}
for status = 0, 5 do
  for _, lane in ipairs(call('ZRANGE', lanes_key(status), 0, -1)) do lanes[lane] = true end
end
for i = 1, #ARGV, 2 do
  local id = ARGV[i]
  call('ZREM', P .. ':delayed', id)
  call('ZREM', P .. ':leases', id)
  for lane in pairs(lanes) do
    if call('ZREM', P .. ':ready:' .. lane, id) == 1 then refresh_head(lane) end
    for status = 0, 5 do
      if call('ZREM', listed_key(status, lane), id) == 1 and call('EXISTS', listed_key(status, lane)) == 0 then
        call('ZREM', lanes_key(status), lane)
      end
    end
  end
  call('HSETNX', P .. ':notes', 'quarantine/tasks/' .. id, 'damaged-' .. id .. ' ' .. ARGV[i + 1])
end
