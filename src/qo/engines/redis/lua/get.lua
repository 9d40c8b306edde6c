-- ARGV = ids. Answers id, s, d, p, r, e of each task that is there.
local rows = {}
for _, id in ipairs(cmsgpack.unpack(ARGV[1])) do append(rows, id) end
return rows
