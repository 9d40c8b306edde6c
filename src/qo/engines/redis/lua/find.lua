-- ARGV = now or '', filter
--   filter: {limit, created_at, id, worker_id, expired_for, finished_for, statuses, shards, retrying, queues, types,
--     kinds of pending tasks, batch};
--     the page starts after (created_at, id), in descending order; shards is a string of digits, or nil
-- Returns {created_at, id, then the rows of tasks}. The search continues after (created_at, id); nil: there are no more.
local now, filter = current_time(ARGV[1]), cmsgpack.unpack(ARGV[2])
local limit, created_at, last_id, worker_id, expired_for, finished_for, statuses, shards, retrying, queues, types,
  kinds, batch = unpack(filter, 1, 13)
local MAX_EXAMINED = 1000 -- tasks per call
local MAX_PAGE_SIZE, FIRST_PAGE_SIZE = 100, 4 -- tasks of one lane read at a time
local LANE_PAGE_SIZE = 32 -- lanes read at a time

if expired_for and call('ZCOUNT', PREFIX .. ':leases', '-inf', now - expired_for) == 0 then return { false, false } end

-- No task finishes before it is created. So with `finished_for` the search can skip the newest tasks.
local newest = created_at or '+inf'
if finished_for and (not created_at or now - finished_for < created_at) then newest = now - finished_for end

local function read_tasks(key, offset, size)
  return call('ZREVRANGEBYSCORE', key, newest, '-inf', 'WITHSCORES', 'LIMIT', offset, size)
end
local function read_lanes(key, offset, size) return call('ZREVRANGE', key, offset, offset + size - 1, 'WITHSCORES') end

local function precedes(a, b)
  if a.score ~= b.score then return a.score > b.score end
  if a.status or b.status then return a.status and not b.status end -- open a lane before tasks of the same score
  return a.member > b.member
end

local function set_of(names)
  local set = {}
  for _, name in ipairs(names) do set[name] = true end
  return set
end
local has_queue, has_type, has_kind, has_status = set_of(queues), set_of(types), set_of(kinds), set_of(statuses)

local function matches_lane(lane)
  if #queues == 0 and #types == 0 then return true end
  local is_lane, names = pcall(cjson.decode, lane)
  return is_lane and (#queues == 0 or has_queue[names[1]]) and (#types == 0 or has_type[names[2]])
end

-- Tasks of a batch are not found by status and lane.
local function matches_state(t) return has_status[STATUS_NAMES[t.status]] and matches_lane(t.lane) end

local function pending_kind(t)
  if t.available_at <= now then return 'ready' end
  if t.available_at == BLOCKED_AT then return 'blocked' end
  return t.failures > 0 and 'retrying' or 'scheduled'
end

local function matches(id)
  if shards and not find(shards, slice(id, 1, 1), 1, true) then return false end
  if not (worker_id or expired_for or finished_for or batch) and retrying == nil and #kinds == 0 then return true end
  local s = call('HGET', task_key(id), 's')
  local t = s and decode_state(s)
  if s and not t then return true end -- the caller sets aside tasks that it cannot read
  if batch and t and not matches_state(t) then return false end
  return t and (not worker_id or t.worker_id == worker_id)
    and (not expired_for or not (t.lease_expires_at > now - expired_for))
    and (not finished_for or t.completed_at <= now - finished_for)
    and (retrying == nil or t.status ~= PENDING or (t.failures > 0) == retrying)
    and (#kinds == 0 or t.status ~= PENDING or has_kind[pending_kind(t)])
end

-- If only tasks match that are due later, and there are few of these, sort them instead of examining all pending tasks.
if not batch and #kinds > 0 and not has_kind.ready and #statuses == 1 and statuses[1] == 'pending'
  and call('ZCARD', PREFIX .. ':delayed') <= MAX_EXAMINED then
  local coming = {}
  for _, id in ipairs(call('ZRANGE', PREFIX .. ':delayed', 0, -1)) do
    local t = decode_state(call('HGET', task_key(id), 's'))
    local is_after = t and created_at and (t.created_at > created_at or t.created_at == created_at and id >= last_id)
    if not t or not is_after and matches_lane(t.lane) and matches(id) then
      coming[#coming + 1] = { score = t and t.created_at or 0, member = id }
    end
  end
  table.sort(coming, precedes)
  local rows = { false, false }
  for i = 1, math.min(#coming, limit) do append_task(rows, coming[i].member) end
  return rows
end

-- A cursor with a status is at a lane, and its score is no older than the lane's newest task. The lane is opened when no
-- other cursor precedes it.
local cursors = {}
if batch then
  local cursor = open_cursor(batch_key(batch), read_tasks, MAX_PAGE_SIZE)
  if cursor then push(cursors, cursor, precedes) end
end
for _, status in ipairs(batch and {} or statuses) do
  local cursor = open_cursor(lanes_key(STATUS_CODES[status]), read_lanes, LANE_PAGE_SIZE)
  if cursor then
    cursor.status = STATUS_CODES[status]
    push(cursors, cursor, precedes)
  end
end

local function open_lane(cursor)
  local tasks = matches_lane(cursor.member)
    and open_cursor(listed_key(cursor.status, cursor.member), read_tasks, FIRST_PAGE_SIZE)
  if tasks then push(cursors, tasks, precedes) end
  if advance(cursor, read_lanes, LANE_PAGE_SIZE) then push(cursors, cursor, precedes) end
end

local rows, found, examined = { false, false }, 0, 0
while #cursors > 0 and found < limit and examined < MAX_EXAMINED do
  local cursor = pop(cursors, precedes)
  if cursor.status then
    open_lane(cursor)
  else
    local id, score = cursor.member, cursor.score
    examined = examined + 1
    if not (created_at and score == created_at and id >= last_id) and matches(id) then
      append_task(rows, id)
      found = found + 1
    end
    rows[1], rows[2] = string.format('%.17g', score), id
    if advance(cursor, read_tasks, math.min(limit, MAX_PAGE_SIZE)) then push(cursors, cursor, precedes) end
  end
end
if #cursors == 0 then rows[1], rows[2] = false, false end
return rows
