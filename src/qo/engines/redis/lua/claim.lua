-- ARGV = nonce, now or '', request, worker
--   request: {limit, lease, worker_id, lease_id, per_type_limits, is_repeat, is_recall, is_prefetch, takes_groups, per_group_limits,
--             group_limits}; limit 0 only checks
--   worker: {queues, types, capabilities}; no queues or no types: all of them
-- Returns {seconds until the next task is due or nil, 1 if a task can be claimed, then the rows of the claimed tasks}.
local nonce, now, request, worker = ARGV[1], current_time(ARGV[2]), cmsgpack.unpack(ARGV[3]), cmsgpack.unpack(ARGV[4])
local limit, lease, worker_id, lease_id, per_type_limits, is_repeat, is_recall, is_prefetch, takes_groups, per_group_limits,
  group_limits = unpack(request, 1, 11)
local queues, types, capabilities = worker[1], worker[2], worker[3]

local rows = { false, 0 }

local function append_if_held(id)
  local s = call('HGET', task_key(id), 's')
  local t = s and decode_state(s)
  if t and t.status == RUNNING and t.lease_id == lease_id then append_task(rows, id) end
end

local receipt = read_receipt(nonce)
if receipt then
  for id in string.gmatch(receipt, '%S+') do append_if_held(id) end -- in the order they were claimed
  return rows
end
if is_recall then -- the caller was cancelled; if its claim arrives later, it finds this receipt and claims nothing
  write_receipt(nonce, '')
  return rows
end
if is_repeat then -- rare, so there is no index of leases by id
  for _, id in ipairs(call('ZRANGE', PREFIX .. ':leases', 0, -1)) do append_if_held(id) end
  if #rows > 2 then return rows end
end

-- Stage tasks that have become due. The number is limited, but larger than that of any claim.
local MAX_STAGED = 500
local due = call('ZRANGEBYSCORE', PREFIX .. ':delayed', '-inf', now, 'LIMIT', 0, MAX_STAGED)
if #due > 0 then
  for _, id in ipairs(due) do
    local t = decode_state(call('HGET', task_key(id), 's'))
    if t then index_pending(t, id, now) else append_task(rows, id) end -- the caller sets aside tasks that it cannot read
  end
  call('ZREM', PREFIX .. ':delayed', unpack(due))
  write_indexes(now)
  refresh_heads(changed_lanes)
  adds, removals, changed_lanes = {}, {}, {}
end

-- --- eligible lanes

local function set_of(names)
  local set = {}
  for _, name in ipairs(names) do set[name] = true end
  return set
end
local has_queue, has_type, has_capability = set_of(queues), set_of(types), set_of(capabilities)

local function has_capabilities(needs)
  for _, need in ipairs(needs) do
    if not has_capability[need] then return false end
  end
  return true
end

-- How many more tasks of the lane's group the claim may take; nil if there is no limit.
local function group_left(parsed)
  return parsed.limit_key and (group_limits[parsed.limit_key] or per_group_limits[parsed.type])
end

local function is_eligible(parsed)
  return parsed and (per_type_limits[parsed.type] or 1) > 0 and (not parsed.limit_key or takes_groups and (group_left(parsed) or 1) > 0)
    and (#queues == 0 or has_queue[parsed.queue]) and (#types == 0 or has_type[parsed.type]) and has_capabilities(parsed.needs)
end

-- --- cursors. The order is that of `in_order` in model/ranking.py: by effective rank, which is the rank, or for a promoted
-- --- task the time since which it waits. Within a lane no task overtakes another.

local function effective_rank(lane, member, rank)
  if rank > now or slice(lane, -3) == ',0]' then return rank end
  local s = call('HGET', task_key(slice(member, 9)), 's')
  local t = s and decode_state(s)
  return t and math.min(rank, due_at(t.available_at, t.created_at)) or rank
end

local function precedes(a, b)
  if a.reached ~= b.reached then return a.reached < b.reached end
  if a.rank ~= b.rank then return a.rank < b.rank end
  local a_created_at, b_created_at = struct_unpack('>d', a.member), struct_unpack('>d', b.member)
  return a_created_at < b_created_at or a_created_at == b_created_at and slice(a.member, 9) < slice(b.member, 9)
end

local function read(key, offset, size) return call('ZRANGE', key, offset, offset + size - 1, 'WITHSCORES') end

-- Set the order of a lane's cursor after it has moved. `reached` is the highest effective rank in the lane so far.
local function rank_cursor(cursor, is_only_lane)
  cursor.rank = cursor.score
  local effective = is_only_lane and cursor.rank or effective_rank(cursor.lane, cursor.member, cursor.rank)
  cursor.reached = math.max(cursor.reached or effective, effective)
  return cursor
end

local function cursors_of_lanes(lanes, size)
  local open, cursors = {}, {}
  for _, lane in ipairs(lanes) do
    local cursor = is_eligible(parsed_lane(lane)) and open_cursor(PREFIX .. ':ready:' .. lane, read, size)
    if cursor then
      cursor.lane, cursor.type, cursor.taken, cursor.size = lane, parsed_lane(lane).type, 0, size
      open[#open + 1] = cursor
    end
  end
  for _, cursor in ipairs(open) do push(cursors, rank_cursor(cursor, #open == 1), precedes) end
  return cursors, #open == 1
end

-- Parse the head at a cursor of heads: the first task of a lane that is not open yet.
local function parse_head(cursor)
  cursor.rank, cursor.lane = struct_unpack('>d', cursor.member), slice(cursor.member, 53)
  cursor.reached, cursor.member = cursor.score, slice(cursor.member, 9, 52)
  return cursor
end

local function cursors_of_heads(groups, size)
  local cursors = {}
  for _, group in ipairs(groups) do
    for _, kind in ipairs({ 'p', 'u' }) do
      local cursor = open_cursor(heads_key(kind, group), read, size)
      if cursor then
        cursor.is_heads, cursor.size = true, size
        push(cursors, parse_head(cursor), precedes)
      end
    end
  end
  return cursors
end

-- A cursor of the lane of a head; nil if the worker is not eligible.
local function open_lane(head, size)
  local parsed = parsed_lane(head.lane)
  if not is_eligible(parsed) then return end
  return {
    key = PREFIX .. ':ready:' .. head.lane, page = { head.member, head.rank }, index = 1, offset = 0,
    member = head.member, score = head.rank, rank = head.rank, reached = head.reached, lane = head.lane,
    type = parsed.type, taken = 0, size = size,
  }
end

-- --- groups of heads

-- A build that knows no limited groups files their heads as if the group were a capability. File them again.
local function file_again(text)
  for _, kind in ipairs({ 'p', 'u' }) do
    local heads = call('ZRANGE', heads_key(kind, '*:' .. text), 0, -1, 'WITHSCORES')
    for i = 1, #heads, 2 do
      local lane, head = slice(heads[i], 53), slice(heads[i], 1, 52)
      local parsed = parsed_lane(lane)
      call('ZREM', heads_key(kind, '=' .. parsed.queue .. ':' .. text), heads[i])
      if call('HGET', HEADS, lane) == kind .. head then
        write_head(lane, parsed, kind, heads[i + 1], head)
        needed[parsed.needs_text] = (needed[parsed.needs_text] or 0) + 1
      end
    end
    call('DEL', heads_key(kind, '*:' .. text))
  end
  call('HDEL', NEEDS, text)
  write_heads()
end

local function eligible_groups()
  local groups = {}
  for _, text in ipairs(call('HKEYS', NEEDS)) do
    if slice(text, 1, 1) == '!' then file_again(text) end
  end
  for _, text in ipairs(call('HKEYS', NEEDS)) do
    local needs = {}
    for need in string.gmatch(text, '%S+') do needs[#needs + 1] = need end
    if has_capabilities(needs) then
      for _, queue in ipairs(queues) do groups[#groups + 1] = '=' .. queue .. ':' .. text end
      if #queues == 0 then groups[#groups + 1] = '*:' .. text end
    end
  end
  return groups
end

-- Promote heads whose rank is past. The number is limited; the others are ordered by rank until the next claim.
local function promote(groups)
  for _, group in ipairs(groups) do
    local heads = call('ZRANGEBYSCORE', heads_key('u', group), '-inf', now, 'LIMIT', 0, MAX_STAGED)
    for _, member in ipairs(heads) do
      local lane, head, rank = slice(member, 53), slice(member, 1, 52), struct_unpack('>d', member)
      remove_head(lane, parsed_lane(lane), 'u' .. head)
      write_head(lane, parsed_lane(lane), 'p', effective_rank(lane, slice(head, 9), rank), head)
    end
    write_heads()
  end
end

-- --- choice of tasks

local MAX_LANES_READ = 64 -- up to this many lanes are read one by one
local chosen, used_lanes = {}, {} -- ids in order; by lane: a cursor behind its chosen tasks

-- Choose the first tasks until the limit is reached. False, if more than `max_skipped` heads were not eligible.
local function choose_from(cursors, is_only_lane, size, max_skipped)
  local skipped = 0
  while #chosen < limit and #cursors > 0 do
    local cursor = pop(cursors, precedes)
    local lane_cursor = cursor
    if cursor.is_heads then
      lane_cursor = open_lane(cursor, size)
      if advance(cursor, read, cursor.size) then push(cursors, parse_head(cursor), precedes) end
      if not lane_cursor then
        skipped = skipped + 1
        if skipped > max_skipped then return false end
      end
    end
    local left = lane_cursor and per_type_limits[lane_cursor.type]
    local parsed = lane_cursor and parsed_lane(lane_cursor.lane)
    local left_of_group = parsed and group_left(parsed)
    if lane_cursor and (not left or left > 0) and (not left_of_group or left_of_group > 0) then
      chosen[#chosen + 1] = slice(lane_cursor.member, 9)
      if left then per_type_limits[lane_cursor.type] = left - 1 end
      if left_of_group then group_limits[parsed.limit_key] = left_of_group - 1 end
      lane_cursor.taken = lane_cursor.taken + 1
      used_lanes[lane_cursor.lane] = lane_cursor
      if advance(lane_cursor, read, lane_cursor.size) and #chosen < limit then
        push(cursors, rank_cursor(lane_cursor, is_only_lane), precedes)
      end
    end
  end
  return true
end

local function count_lanes_of_types()
  local number = 0
  for name in pairs(has_type) do number = number + call('SCARD', PREFIX .. ':typed:' .. name) end
  return number
end

local function lanes_of_types()
  local lanes = {}
  for name in pairs(has_type) do
    for _, lane in ipairs(call('SMEMBERS', PREFIX .. ':typed:' .. name)) do lanes[#lanes + 1] = lane end
  end
  return lanes
end

local function undo_choice()
  for _, cursor in pairs(used_lanes) do
    if per_type_limits[cursor.type] then per_type_limits[cursor.type] = per_type_limits[cursor.type] + cursor.taken end
    local key = parsed_lane(cursor.lane).limit_key
    if key and group_limits[key] then group_limits[key] = group_limits[key] + cursor.taken end
  end
  chosen, used_lanes = {}, {}
end

-- A worker for few lanes reads each of them. Otherwise heads are read in order, and those of other types are skipped, until
-- that has cost as much as reading each lane of the worker's types.
local function choose()
  local number = #types > 0 and count_lanes_of_types() or call('HLEN', HEADS)
  if number == 0 then return end
  if #types == 0 or number > MAX_LANES_READ then
    local groups = eligible_groups()
    promote(groups)
    local size = math.max(1, math.ceil(2 * limit / number))
    local max_skipped = #types > 0 and math.max(4 * MAX_LANES_READ, number) or math.huge
    local cursors = cursors_of_heads(groups, math.min(limit, MAX_LANES_READ))
    if choose_from(cursors, number == 1, size, max_skipped) then return end
    undo_choice()
  end
  local lanes = lanes_of_types()
  local size = math.max(1, math.ceil(2 * limit / math.max(1, #lanes)))
  local cursors, is_only_lane = cursors_of_lanes(lanes, size)
  choose_from(cursors, is_only_lane, size, math.huge)
end

local is_check = limit == 0
if is_check then limit = 1 end
choose()
if #chosen > 0 then rows[2] = 1 end
if is_check then chosen, used_lanes = {}, {} end
if #chosen > 0 then check_lease_rights() end

for _, id in ipairs(chosen) do
  local row = call('HMGET', task_key(id), 's', 'd', 'p', 'r', 'e', 'k', 'a', 'b', 'g')
  local t, s = decode_state(row[1]), row[1]
  if t then
    t.status, t.attempt, t.version = RUNNING, t.attempt + 1, t.version + 1
    t.worker_id, t.lease_id = worker_id, lease_id
    t.lease_expires_at, t.started_at, t.updated_at = now + lease, is_prefetch and NO_TIME or now, now
    s = encode_state(t)
    call('HSET', task_key(id), 's', s, 'h' .. t.version, encode_event(t, row[5]))
    if row[9] then
      call('HDEL', task_key(id), 'g')
      row[9] = false
    end
    unindex_status(PENDING, t.lane, id)
    index_status(RUNNING, t.lane, t.created_at, id)
    add_later(PREFIX .. ':leases', t.lease_expires_at, id)
  end
  local n = #rows
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4], rows[n + 5], rows[n + 6] = id, s, row[2], row[3], row[4], row[5]
  rows[n + 7], rows[n + 8], rows[n + 9], rows[n + 10] = row[6], row[7], row[8], row[9]
end
local emptied = {}
for lane, cursor in pairs(used_lanes) do
  if cursor.member then
    call('ZREMRANGEBYRANK', cursor.key, 0, cursor.taken - 1)
    if unlisted[PENDING] then unlisted[PENDING][lane] = nil end -- it still has pending tasks
  else
    emptied[#emptied + 1] = cursor.key
  end
end
if #emptied > 0 then call('DEL', unpack(emptied)) end
refresh_heads(used_lanes)
write_indexes(now)
for lane in pairs(filled_lanes) do -- no notification of a lane whose staged tasks are all claimed
  if call('EXISTS', PREFIX .. ':ready:' .. lane) == 0 then filled_lanes[lane] = nil end
end
notify(now)
if #chosen > 0 then
  write_receipt(nonce, table.concat(chosen, ' '))
else
  local due_in = next_due_in(now)
  rows[1] = due_in and string.format('%.17g', due_in) or false -- not nil, which would end the list
end
return rows
