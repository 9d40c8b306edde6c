-- ARGV = now or '', where, lanes
--   where: {limit, created_at, id, worker_id, expired_for, finished_for, statuses, shards, retrying};
--     the page starts behind (created_at, id); shards is a text of digits or nil
--   lanes: {tag, lane...}, those to look in
-- Answers {0, tag, lane...} if the caller does not know all lanes, else {1, created_at, id, then the tasks' rows}:
--   the search goes on behind (created_at, id), or has seen everything if they are nil.
local now, where, known = clock(ARGV[1]), cmsgpack.unpack(ARGV[2]), cmsgpack.unpack(ARGV[3])
local limit, created_at, last_id, worker_id, expired_for, finished_for, statuses, shards, retrying =
  unpack(where, 1, 9)
local MOST = 1000 -- tasks looked at in one call

local unknown = all_lanes_unless(known[1])
if unknown then return unknown end
if expired_for and call('ZCOUNT', P .. ':leases', '-inf', now - expired_for) == 0 then return { 1, false, false } end

-- Nothing ends before it is created: without this the search would begin among the newest tasks.
local newest = created_at or '+inf'
if finished_for and (not created_at or now - finished_for < created_at) then newest = now - finished_for end

local function read(key, offset, size)
  return call('ZREVRANGEBYSCORE', key, newest, '-inf', 'WITHSCORES', 'LIMIT', offset, size)
end
local function first(a, b) return a.score > b.score or a.score == b.score and a.id > b.id end

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

local arms = {}
local size = math.max(1, math.ceil(limit / math.max(1, (#known - 1) * #statuses)))
for i = 2, #known do
  for _, status in ipairs(statuses) do
    local arm = open_arm(listed_key(CODES[status], known[i]), read, size)
    if arm then place(arms, arm, first) end
  end
end

local rows, found, seen = { 1, false, false }, 0, 0
while #arms > 0 and found < limit and seen < MOST do
  local arm = table.remove(arms)
  local id, score = arm.id, arm.score
  seen = seen + 1
  if not (created_at and score == created_at and id >= last_id) and matches(id) then
    append(rows, id)
    found = found + 1
  end
  rows[2], rows[3] = string.format('%.17g', score), id
  if forward(arm, read, size) then place(arms, arm, first) end
end
if #arms == 0 then rows[2], rows[3] = false, false end
return rows
