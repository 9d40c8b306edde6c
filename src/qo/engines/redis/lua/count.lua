-- Answers lane, then how many tasks of each status, for every lane.
local rows = {}
for _, lane in ipairs(call('SMEMBERS', P .. ':lanes')) do
  rows[#rows + 1] = lane
  for status = 0, 5 do rows[#rows + 1] = call('ZCARD', listed_key(status, lane)) end
end
return rows
