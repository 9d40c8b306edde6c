-- Migrates a queue of an earlier format, in steps that each take a short time:
--   begin: refuse older builds from now on. Returns 1 if there are lanes to convert
--   convert, size, cursor, lane...: convert about `size` ready tasks, from the cursor of the first lane on. Returns how many
--     lanes are done, and the cursor of the next one
--   end: the queue can be used
-- A step can be repeated, also by several processes at a time: it recognises what is converted. So the next process continues
-- an interrupted migration. `begin` writes :format first: without the right to do so, nothing is changed.
local MEMBER_SIZE = 44 -- of a member of :ready since format 4; before, it was the id

local function begin()
  if stored_format[2] and tonumber(stored_format[2]) >= FORMAT then return stored_format[3] and 1 or 0 end
  local fields = { 'format', FORMAT, 'since', {since}, 'qo', '{qo}' }
  local has_lanes = call('EXISTS', PREFIX .. ':lanes', PREFIX .. ':lanes:tag', HEADS) > 0
  if has_lanes then fields[7], fields[8] = 'migrating', '1' end
  call('HSET', PREFIX .. ':format', unpack(fields))
  return has_lanes and 1 or 0
end

local function convert_member(key, lane, id, rank)
  local s = call('HGET', task_key(id), 's')
  local t = s and decode_state(s)
  local created_at = t and t.created_at or tonumber(call('ZSCORE', listed_key(PENDING, lane), id) or 0)
  call('ZADD', key, rank, ready_member(created_at, id))
  call('ZREM', key, id)
end

-- Returns the cursor for the rest, which is '0' at the end, and how many members were read. A scan, because converted members
-- of equal rank change places.
local function convert_members(lane, cursor, size)
  local key = PREFIX .. ':ready:' .. lane
  local page = call('ZSCAN', key, cursor, 'COUNT', size)
  local members = page[2]
  for i = 1, #members, 2 do
    if #members[i] ~= MEMBER_SIZE then convert_member(key, lane, members[i], members[i + 1]) end
  end
  return page[1], #members / 2
end

-- Before format 3 there were no heads, and one set of all lanes.
local function index_lane(lane)
  for status = 0, 5 do
    local newest = call('ZRANGE', listed_key(status, lane), -1, -1, 'WITHSCORES')
    if newest[2] then call('ZADD', lanes_key(status), newest[2], lane) end
  end
  refresh_heads({ [lane] = true })
end

local function convert(size, cursor, first)
  if not stored_format[3] then return { #ARGV - first + 1, '0' } end -- another process has ended the migration
  local left, done = size, 0
  while left > 0 and first + done <= #ARGV do
    local lane, read = ARGV[first + done], 0
    cursor, read = convert_members(lane, cursor, math.max(left, 10))
    left = left - read - 1
    if cursor == '0' then
      index_lane(lane)
      done = done + 1
    end
  end
  return { done, cursor }
end

if ARGV[1] == 'begin' then return begin() end
if ARGV[1] == 'convert' then return convert(tonumber(ARGV[2]), ARGV[3], 4) end
call('DEL', PREFIX .. ':lanes', PREFIX .. ':lanes:tag')
call('HDEL', PREFIX .. ':format', 'migrating')
