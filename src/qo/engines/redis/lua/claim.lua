-- ARGV = nonce, now or '', want, lanes
--   want: {limit, lease, worker_id, lease_id, at_most, again, recall, is_prefetch};  lanes: {tag, lane, type, lane, type...}, those eligible
-- Answers {0, tag, lane...} if the caller does not know all lanes, else
--   {1, seconds until something is due or nil, 1 if something can be claimed, then id, s, d, p, r, e of each task}.
local nonce, now, want, known = ARGV[1], clock(ARGV[2]), cmsgpack.unpack(ARGV[3]), cmsgpack.unpack(ARGV[4])
local limit, lease, worker_id, lease_id, at_most, again, recall, is_prefetch = unpack(want, 1, 8)

local unknown = all_lanes_unless(known[1])
if unknown then return unknown end

local rows = { 1, false, 0 }

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
if again then -- rare, so leases are not indexed by their id
  for _, id in ipairs(call('ZRANGE', P .. ':leases', 0, -1)) do append_held(id) end
  if #rows > 3 then return rows end
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
  adds, removals = {}, {}
end

local function read(key, offset, size) return call('ZRANGE', key, offset, offset + size - 1, 'WITHSCORES') end
local function first(a, b)
  if a.reached ~= b.reached then return a.reached < b.reached end
  return a.score < b.score or a.score == b.score and a.id < b.id
end

local size = math.max(1, math.ceil(2 * limit / #known))
local open = {}
for i = 2, #known, 2 do
  local arm = (at_most[known[i + 1]] or 1) > 0 and open_arm(P .. ':ready:' .. known[i], read, size)
  if arm then
    arm.lane, arm.type, arm.taken = known[i], known[i + 1], 0
    open[#open + 1] = arm
  end
end
rows[3] = #open > 0 and 1 or 0

-- The order of `in_order` in model/order.py: lanes are compared by the effective rank of their heads. It is the rank,
-- except for a promoted task; and a task of priority 0, or in the only lane, has nothing to gain from a promotion.
local function with_reach(arm)
  local effective = arm.score
  if effective <= now and #open > 1 and slice(arm.lane, -3) ~= ',0]' then
    local s = call('HGET', task_key(arm.id), 's')
    local t = s and decode(s)
    effective = t and due_at(t.available_at, t.created_at) or effective
  end
  arm.reached = math.max(arm.reached or effective, effective)
  return arm
end

local arms = {}
for _, arm in ipairs(open) do place(arms, with_reach(arm), first) end

local chosen, used = {}, {}
while #chosen < limit and #arms > 0 do
  local arm = table.remove(arms)
  local left = at_most[arm.type]
  if not left or left > 0 then
    chosen[#chosen + 1] = arm.id
    if left then at_most[arm.type] = left - 1 end
    arm.taken = arm.taken + 1
    used[arm.lane] = arm
    if #chosen < limit and forward(arm, read, size) then place(arms, with_reach(arm), first) end
  end
end

for _, id in ipairs(chosen) do
  local row = call('HMGET', task_key(id), 's', 'd', 'p', 'r', 'e')
  local t, s = decode(row[1]), row[1]
  if t then
    t.status, t.attempt, t.version = RUNNING, t.attempt + 1, t.version + 1
    t.worker_id, t.lease_id = worker_id, lease_id
    t.lease_expires_at, t.started_at, t.updated_at = now + lease, is_prefetch and NONE or now, now
    s = encode(t)
    call('HSET', task_key(id), 's', s, 'h' .. t.version, event(t, row[5]))
    take(listed_key(PENDING, t.lane), id)
    put(listed_key(RUNNING, t.lane), t.created_at, id)
    put(P .. ':leases', t.lease_expires_at, id)
  end
  local n = #rows
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4], rows[n + 5], rows[n + 6] = id, s, row[2], row[3], row[4], row[5]
end
for lane, arm in pairs(used) do call('ZREMRANGEBYRANK', P .. ':ready:' .. lane, 0, arm.taken - 1) end
move(now)
for lane in pairs(filled) do
  if call('EXISTS', P .. ':ready:' .. lane) == 0 then filled[lane] = nil end -- made ready and claimed at once
end
publish(now)
if #chosen > 0 then
  sign(nonce, table.concat(chosen, ' '))
else
  local due_in = coming(now)
  rows[2] = due_in and string.format('%.17g', due_in) or false -- a nil would end the list
end
return rows
