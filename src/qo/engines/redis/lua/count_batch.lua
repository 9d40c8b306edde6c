-- ARGV = batch, offset, size
-- Returns how many tasks of the batch were read, from an offset on, then lane, status and number of each combination among them.
local ids = call('ZRANGE', batch_key(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[2]) + tonumber(ARGV[3]) - 1)
local counts, rows = {}, { #ids }
for _, id in ipairs(ids) do
  local t = decode_state(call('HGET', task_key(id), 's'))
  if t then
    local key = STATUS_NAMES[t.status] .. ' ' .. t.lane
    counts[key] = (counts[key] or 0) + 1
  end
end
for key, number in pairs(counts) do
  rows[#rows + 1] = key
  rows[#rows + 1] = number
end
return rows
