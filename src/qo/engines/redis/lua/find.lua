-- ARGV = now or '', where
--   where: {limit, created_at, id, worker_id, expired_for, finished_for, statuses, shards, retrying, queues, types};
--     the page starts behind (created_at, id); shards is a text of digits or nil
-- Answers {created_at, id, then the tasks' rows}: the search goes on behind (created_at, id), or has seen everything if
--   they are nil.
local now, where = clock(ARGV[1]), cmsgpack.unpack(ARGV[2])
local limit, created_at, last_id, worker_id, expired_for, finished_for, statuses, shards, retrying, queues, types =
  unpack(where, 1, 11)
local MOST = 1000 -- tasks looked at in one call
local MANY = 100 -- tasks of one lane read at a time

if expired_for and call('ZCOUNT', P .. ':leases', '-inf', now - expired_for) == 0 then return { false, false } end

-- Nothing ends before it is created: without this the search would begin among the newest tasks.
local newest = created_at or '+inf'
if finished_for and (not created_at or now - finished_for < created_at) then newest = now - finished_for end

local function read(key, offset, size)
  return call('ZREVRANGEBYSCORE', key, newest, '-inf', 'WITHSCORES', 'LIMIT', offset, size)
end
local function read_lanes(key, offset, size) return call('ZREVRANGE', key, offset, offset + size - 1, 'WITHSCORES') end
local function first(a, b)
  if a.score ~= b.score then return a.score > b.score end
  if a.status or b.status then return a.status and not b.status end -- a lane is opened before it is known what it holds
  return a.id > b.id
end

local function matches(id)
  if shards and not find(shards, slice(id, 1, 1), 1, true) then return false end
  if not (worker_id or expired_for or finished_for) and retrying == nil then return true end
  local s = call('HGET', task_key(id), 's')
  local t = s and decode(s)
  if s and not t then return true end -- the caller sets aside what it cannot read
  return t and (not worker_id or t.worker_id == worker_id)
    and (not expired_for or not (t.lease_expires_at > now - expired_for))
    and (not finished_for or t.completed_at <= now - finished_for)
    and (retrying == nil or t.status ~= PENDING or (t.failures > 0) == retrying)
end

local function set_of(names)
  local set = {}
  for _, name in ipairs(names) do set[name] = true end
  return set
end
local has_queue, has_type = set_of(queues), set_of(types)

local function is_asked(lane)
  if #queues == 0 and #types == 0 then return true end
  local is_lane, names = pcall(cjson.decode, lane)
  return is_lane and (#queues == 0 or has_queue[names[1]]) and (#types == 0 or has_type[names[2]])
end

-- An arm of lanes shows the lane whose newest task may come next. It is opened when its turn comes.
local LANES = 32 -- read at a time
local arms = {}
for _, status in ipairs(statuses) do
  local arm = open_arm(lanes_key(CODES[status]), read_lanes, LANES)
  if arm then
    arm.status = CODES[status]
    push(arms, arm, first)
  end
end

local function open_next_lane(arm)
  local lane_arm = is_asked(arm.id) and open_arm(listed_key(arm.status, arm.id), read, 4)
  if lane_arm then push(arms, lane_arm, first) end
  if forward(arm, read_lanes, LANES) then push(arms, arm, first) end
end

local rows, found, seen = { false, false }, 0, 0
while #arms > 0 and found < limit and seen < MOST do
  local arm = pop(arms, first)
  if arm.status then
    open_next_lane(arm)
  else
    local id, score = arm.id, arm.score
    seen = seen + 1
    if not (created_at and score == created_at and id >= last_id) and matches(id) then
      append(rows, id)
      found = found + 1
    end
    rows[1], rows[2] = string.format('%.17g', score), id
    if forward(arm, read, math.min(limit, MANY)) then push(arms, arm, first) end
  end
end
if #arms == 0 then rows[1], rows[2] = false, false end
return rows
