-- ARGV = nonce, now or '', request, who
--   request: {limit, lease, worker_id, lease_id, per_type_limits, is_repeat, recall, is_prefetch}
--   who: {queues, types, capabilities}; no queues or no types: all of them
-- Answers {seconds until something is due or nil, 1 if something can be claimed, then id, s, d, p, r, e of each task}.
local nonce, now, request, who = ARGV[1], clock(ARGV[2]), cmsgpack.unpack(ARGV[3]), cmsgpack.unpack(ARGV[4])
local limit, lease, worker_id, lease_id, per_type_limits, is_repeat, recall, is_prefetch = unpack(request, 1, 8)
local queues, types, capabilities = who[1], who[2], who[3]

local rows = { false, 0 }

local function append_held(id)
  local s = call('HGET', task_key(id), 's')
  local t = s and decode(s)
  if t and t.status == RUNNING and t.lease_id == lease_id then append(rows, id) end
end

local before = receipt(nonce)
if before then
  for id in string.gmatch(before, '%S+') do append_held(id) end -- in the order they were claimed
  return rows
end
if recall then -- its caller has left: should the claim itself arrive after this, it finds a receipt and takes nothing
  sign(nonce, '')
  return rows
end
if is_repeat then -- rare, so leases are not indexed by their id
  for _, id in ipairs(call('ZRANGE', P .. ':leases', 0, -1)) do append_held(id) end
  if #rows > 2 then return rows end
end

-- What has become due moves into its lane: a bounded step, and more than one claim takes.
local STEP = 500
local due = call('ZRANGEBYSCORE', P .. ':delayed', '-inf', now, 'LIMIT', 0, STEP)
if #due > 0 then
  for _, id in ipairs(due) do
    local t = decode(call('HGET', task_key(id), 's'))
    if t then wait_in_line(t, id, now) else append(rows, id) end -- the caller sets aside what it cannot read
  end
  call('ZREM', P .. ':delayed', unpack(due))
  move(now)
  refresh_heads(changed_lanes)
  adds, removals, changed_lanes = {}, {}, {}
end

-- --- which lanes: those of few types are looked up, else heads are met in order and what does not fit is passed over

local function set_of(names)
  local set = {}
  for _, name in ipairs(names) do set[name] = true end
  return set
end
local has_queue, has_type, has_capability = set_of(queues), set_of(types), set_of(capabilities)

local function is_able(needs)
  for _, need in ipairs(needs) do
    if not has_capability[need] then return false end
  end
  return true
end

local function is_open(place)
  return place and (per_type_limits[place.type] or 1) > 0 and (#queues == 0 or has_queue[place.queue])
    and (#types == 0 or has_type[place.type]) and is_able(place.needs)
end

-- The order of `in_order` in model/ranking.py: by effective rank, which is the rank, except for a promoted task.
local function effective_rank(lane, id, rank)
  if rank > now or slice(lane, -3) == ',0]' then return rank end
  local s = call('HGET', task_key(id), 's')
  local t = s and decode(s)
  return t and due_at(t.available_at, t.created_at) or rank
end

local function first(a, b)
  if a.reached ~= b.reached then return a.reached < b.reached end
  return a.rank < b.rank or a.rank == b.rank and a.id < b.id
end

local function read(key, offset, size) return call('ZRANGE', key, offset, offset + size - 1, 'WITHSCORES') end

-- An arm of a lane: its next task. Within a lane nothing overtakes.
local function go_on(arm, is_only)
  arm.rank = arm.score
  local effective = is_only and arm.rank or effective_rank(arm.lane, arm.id, arm.rank)
  arm.reached = math.max(arm.reached or effective, effective)
  return arm
end

local function arms_of_lanes(lanes, size)
  local open, arms = {}, {}
  for _, lane in ipairs(lanes) do
    local arm = is_open(place_of(lane)) and open_arm(P .. ':ready:' .. lane, read, size)
    if arm then
      arm.lane, arm.type, arm.taken, arm.size = lane, place_of(lane).type, 0, size
      open[#open + 1] = arm
    end
  end
  for _, arm in ipairs(open) do push(arms, go_on(arm, #open == 1), first) end
  return arms, #open == 1
end

-- An arm of heads: the head that comes next, of a lane that is not open yet.
local function show_head(arm)
  arm.rank, arm.lane = struct_unpack('>d', arm.id), slice(arm.id, 45)
  arm.reached, arm.id = arm.score, slice(arm.id, 9, 44)
  return arm
end

local function arms_of_heads(groups, size)
  local arms = {}
  for _, group in ipairs(groups) do
    for _, kind in ipairs({ 'p', 'u' }) do
      local arm = open_arm(heads_key(kind, group), read, size)
      if arm then
        arm.is_heads, arm.size = true, size
        push(arms, show_head(arm), first)
      end
    end
  end
  return arms
end

local function wanted_groups()
  local groups = {}
  for _, text in ipairs(call('HKEYS', NEEDS)) do
    local needs = {}
    for need in string.gmatch(text, '%S+') do needs[#needs + 1] = need end
    if is_able(needs) then
      for _, queue in ipairs(queues) do groups[#groups + 1] = '=' .. queue .. ':' .. text end
      if #queues == 0 then groups[#groups + 1] = '*:' .. text end
    end
  end
  return groups
end

-- Heads whose time for promotion has come change sets: a bounded step; the others keep to their ranks until the next claim.
local function promote(groups)
  for _, group in ipairs(groups) do
    local heads = call('ZRANGEBYSCORE', heads_key('u', group), '-inf', now, 'LIMIT', 0, STEP)
    for _, member in ipairs(heads) do
      local lane, id, rank = slice(member, 45), slice(member, 9, 44), struct_unpack('>d', member)
      drop_head(lane, place_of(lane), 'u' .. slice(member, 1, 44))
      write_head(lane, place_of(lane), 'p', effective_rank(lane, id, rank), slice(member, 1, 44))
    end
  end
end

local chosen, used = {}, {}

local function open_lane(head, size)
  local place = place_of(head.lane)
  if not is_open(place) then return end
  return {
    key = P .. ':ready:' .. head.lane, few = { head.id, head.rank }, at = 1, offset = 0, id = head.id, score = head.rank,
    rank = head.rank, reached = head.reached, lane = head.lane, type = place.type, taken = 0, size = size,
  }
end

-- Takes from the arms until there are enough. False: so many heads did not fit that it gave up.
local function take_first(arms, is_only, size, max_passed)
  local passed = 0
  while #chosen < limit and #arms > 0 do
    local arm = pop(arms, first)
    local lane_arm = arm
    if arm.is_heads then
      lane_arm = open_lane(arm, size)
      if forward(arm, read, arm.size) then push(arms, show_head(arm), first) end
      if not lane_arm then
        passed = passed + 1
        if passed > max_passed then return false end
      end
    end
    local left = lane_arm and per_type_limits[lane_arm.type]
    if lane_arm and (not left or left > 0) then
      chosen[#chosen + 1] = lane_arm.id
      if left then per_type_limits[lane_arm.type] = left - 1 end
      lane_arm.taken = lane_arm.taken + 1
      used[lane_arm.lane] = lane_arm
      if #chosen < limit and forward(lane_arm, read, lane_arm.size) then push(arms, go_on(lane_arm, is_only), first) end
    end
  end
  return true
end

local FEW = 64 -- lanes that are looked up one by one

local function number_of_lanes()
  local number = 0
  for name in pairs(has_type) do number = number + call('SCARD', P .. ':typed:' .. name) end
  return number
end

local function lanes_of_types()
  local lanes = {}
  for name in pairs(has_type) do
    for _, lane in ipairs(call('SMEMBERS', P .. ':typed:' .. name)) do lanes[#lanes + 1] = lane end
  end
  return lanes
end

local function start_over()
  for _, arm in pairs(used) do
    if per_type_limits[arm.type] then per_type_limits[arm.type] = per_type_limits[arm.type] + arm.taken end
  end
  chosen, used = {}, {}
end

-- Heads are passed over until that has cost as much as to look at each lane of the types wanted.
local function choose()
  local number = #types > 0 and number_of_lanes() or call('HLEN', HEADS)
  if number == 0 then return end
  if #types == 0 or number > FEW then
    local groups = wanted_groups()
    promote(groups)
    local size = math.max(1, math.ceil(2 * limit / number))
    local max_passed = #types > 0 and math.max(4 * FEW, number) or math.huge
    if take_first(arms_of_heads(groups, math.min(limit, FEW)), number == 1, size, max_passed) then return end
    start_over()
  end
  local lanes = lanes_of_types()
  local size = math.max(1, math.ceil(2 * limit / math.max(1, #lanes)))
  local arms, is_only = arms_of_lanes(lanes, size)
  take_first(arms, is_only, size, math.huge)
end

local is_look = limit == 0
if is_look then limit = 1 end
choose()
if #chosen > 0 then rows[2] = 1 end
if is_look then chosen, used = {}, {} end
if #chosen > 0 then check_worker() end

for _, id in ipairs(chosen) do
  local row = call('HMGET', task_key(id), 's', 'd', 'p', 'r', 'e', 'k', 'a')
  local t, s = decode(row[1]), row[1]
  if t then
    t.status, t.attempt, t.version = RUNNING, t.attempt + 1, t.version + 1
    t.worker_id, t.lease_id = worker_id, lease_id
    t.lease_expires_at, t.started_at, t.updated_at = now + lease, is_prefetch and NONE or now, now
    s = encode(t)
    call('HSET', task_key(id), 's', s, 'h' .. t.version, event(t, row[5]))
    unlist(PENDING, t.lane, id)
    list(RUNNING, t.lane, t.created_at, id)
    put(P .. ':leases', t.lease_expires_at, id)
  end
  local n = #rows
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4], rows[n + 5], rows[n + 6] = id, s, row[2], row[3], row[4], row[5]
  rows[n + 7], rows[n + 8] = row[6], row[7]
end
for lane, arm in pairs(used) do
  call('ZREMRANGEBYRANK', P .. ':ready:' .. lane, 0, arm.taken - 1)
  refresh_head(lane)
end
move(now)
for lane in pairs(filled) do
  if call('EXISTS', P .. ':ready:' .. lane) == 0 then filled[lane] = nil end -- made ready and claimed at once
end
publish(now)
if #chosen > 0 then
  sign(nonce, table.concat(chosen, ' '))
else
  local due_in = coming(now)
  rows[1] = due_in and string.format('%.17g', due_in) or false -- a nil would end the list
end
return rows
