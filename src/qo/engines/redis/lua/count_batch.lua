-- ARGV = batch, size, created_at or '', id
-- Reads up to `size` tasks of the batch that follow (created_at, id), in ascending order. Returns how many tasks were read, the
-- created_at and id of the last one, then status and lane, and number of each combination among them.
-- An offset would skip tasks: a process that moves finished tasks to the archive removes members between two calls.
local key, size, created_at, last_id = batch_key(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]
local start = 0
if created_at ~= '' then
  start = call('ZCOUNT', key, '-inf', '(' .. created_at)
  local stop = call('ZCOUNT', key, '-inf', created_at)
  while start < stop do -- members of equal score are ordered by their bytes: find the first one after `last_id`
    local middle = math.floor((start + stop) / 2)
    if call('ZRANGE', key, middle, middle)[1] > last_id then stop = middle else start = middle + 1 end
  end
end
local members = call('ZRANGE', key, start, start + size - 1, 'WITHSCORES')
local counts, rows = {}, { #members / 2, members[#members] or '', members[#members - 1] or '' }
for i = 1, #members, 2 do
  local t = decode_state(call('HGET', task_key(members[i]), 's'))
  if t then
    local combination = STATUS_NAMES[t.status] .. ' ' .. t.lane
    counts[combination] = (counts[combination] or 0) + 1
  end
end
for combination, number in pairs(counts) do
  rows[#rows + 1] = combination
  rows[#rows + 1] = number
end
return rows
