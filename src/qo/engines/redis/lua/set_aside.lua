-- ARGV = per task: id, the data of a note with the reason why it cannot be read
-- Removes damaged tasks from every index; their hashes stay. The damaged part may be the state, which names the lane and
-- status of a task, so all lanes and statuses are searched.

-- To a build that does not know the newest format, every task of that format looks damaged.
local newest_format = call('HGET', PREFIX .. ':format', 'format')
if newest_format and tonumber(newest_format) > FORMAT then return newer_format_error() end
local lanes = {}
for status = 0, 5 do
  for _, lane in ipairs(call('ZRANGE', lanes_key(status), 0, -1)) do lanes[lane] = true end
end
for i = 1, #ARGV, 2 do
  local id = ARGV[i]
  call('ZREM', PREFIX .. ':delayed', id)
  call('ZREM', PREFIX .. ':leases', id)
  local group = call('HGET', task_key(id), 'b')
  if group then call('ZREM', batch_key(group), id) end
  for lane in pairs(lanes) do
    local created_at = call('ZSCORE', listed_key(PENDING, lane), id)
    if created_at and call('ZREM', PREFIX .. ':ready:' .. lane, ready_member(tonumber(created_at), id)) == 1 then
      refresh_heads({ [lane] = true })
    end
    for status = 0, 5 do
      if call('ZREM', listed_key(status, lane), id) == 1 and call('EXISTS', listed_key(status, lane)) == 0 then
        call('ZREM', lanes_key(status), lane)
      end
    end
  end
  call('HSETNX', PREFIX .. ':notes', 'quarantine/tasks/' .. id, 'damaged-' .. id .. ' ' .. ARGV[i + 1])
end
