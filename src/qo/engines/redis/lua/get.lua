-- ARGV = ids
-- Returns the rows (see `append_task`) of those tasks that exist.
local rows = {}
for _, id in ipairs(cmsgpack.unpack(ARGV[1])) do append_task(rows, id) end
return rows
