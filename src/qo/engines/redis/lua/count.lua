-- ARGV = status, offset, size
-- Returns a page of the lanes that have tasks of this status, each followed by their number.
local status, offset, size = STATUS_CODES[ARGV[1]], tonumber(ARGV[2]), tonumber(ARGV[3])
local rows = {}
for _, lane in ipairs(call('ZRANGE', lanes_key(status), offset, offset + size - 1)) do
  rows[#rows + 1] = lane
  rows[#rows + 1] = call('ZCARD', listed_key(status, lane))
end
return rows
