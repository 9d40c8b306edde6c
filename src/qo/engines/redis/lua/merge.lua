-- For scripts that read several sorted sets as one: a heap of cursors, each at one member of its set.
--   precedes(a, b): whether the member at cursor a comes before the one at cursor b
--   read(key, offset, size): a page of members and scores
local function push(cursors, cursor, precedes)
  local at = #cursors + 1
  while at > 1 do
    local parent = math.floor(at / 2)
    if not precedes(cursor, cursors[parent]) then break end
    cursors[at] = cursors[parent]
    at = parent
  end
  cursors[at] = cursor
end

local function pop(cursors, precedes)
  local top, last = cursors[1], table.remove(cursors)
  if #cursors == 0 then return top end
  local at = 1
  while true do
    local child = 2 * at
    if child > #cursors then break end
    if child < #cursors and precedes(cursors[child + 1], cursors[child]) then child = child + 1 end
    if not precedes(cursors[child], last) then break end
    cursors[at] = cursors[child]
    at = child
  end
  cursors[at] = last
  return top
end

-- Moves the cursor to the next member. Returns the member, or nil at the end of the set.
local function advance(cursor, read, size)
  cursor.index = cursor.index + 2
  if not cursor.page[cursor.index] then
    cursor.offset = cursor.offset + #cursor.page / 2
    cursor.page, cursor.index = read(cursor.key, cursor.offset, size), 1
  end
  cursor.member, cursor.score = cursor.page[cursor.index], tonumber(cursor.page[cursor.index + 1])
  return cursor.member
end

-- A cursor at the first member, or nil for an empty set.
local function open_cursor(key, read, size)
  local cursor = { key = key, page = {}, index = -1, offset = 0 }
  return advance(cursor, read, size) and cursor
end
