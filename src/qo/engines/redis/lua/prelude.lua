-- Prepended to every script. Everything lies under one hash tag, so that a Cluster keeps it in one slot.
--
--   KEYS[1] = "{prefix}"; behind it:
--     :task:<id>               hash    s state (packed), d description (JSON), p payload, r result, e error,
--                                      k failure kind, a status before it was archived,
--                                      h<version> one event each (packed); or only m: moved to the archive
--     :lanes:<status>          zset    lanes that have tasks of this status, by a created_at that none of them is behind;
--                                      a lane is the JSON text of [queue, type, needs, priority]
--     :ready:<lane>            zset    ids by rank: pending, and seen to be due; for its first one see heads.lua
--     :delayed                 zset    ids by available_at: pending, not yet in ready
--     :followers               hash    of a first task under an idempotency key: the last one under it
--     :followed                hash    the other way round
--     :leases                  zset    ids by lease_expires_at: running
--     :listed:<status>:<lane>  zset    ids by created_at; its size is the count
--     :receipt:<nonce>         string  what a write answered, for a caller who lost the answer and asks again
--     :notes                   hash    name -> version, a space, data
--     :admin, :audit           hash    the same, of notes that begin so: keys that ACLs keep roles out of. No other key
--                                      begins with `:a`
--     :format                  hash    format, since, qo: which builds may use all this (docs/formats.md)
--     :fence                   string  written behind each write if replicas are to confirm it (copies.py)
--     :news                    channel [seconds until something is due or null, [lanes with something to claim]]
--
-- Time is the server's unless the caller (a test) names it. Numbers go to redis.call as numbers: it writes all 17
-- digits, where tostring() would lose some. Payloads and results are never looked at.
local P = KEYS[1]
local call, struct_pack, struct_unpack, find, slice = redis.call, struct.pack, struct.unpack, string.find, string.sub
-- A newer qo may have come since the caller opened the queue.
local FORMAT = {format}
local function written_by_newer()
  return redis.error_reply('QOFORMAT this queue was written by a newer qo; use qo '
    .. (call('HGET', P .. ':format', 'qo') or '') .. ' or newer')
end
local stored_format = call('HMGET', P .. ':format', 'since', 'format')
if stored_format[1] and tonumber(stored_format[1]) > FORMAT then return written_by_newer() end
local RECEIPT = 30 -- seconds; callers give up asking long before

local PENDING, RUNNING, COMPLETED, ARCHIVED = 0, 1, 2, 5
local NAMES = { [0] = 'pending', 'running', 'completed', 'failed', 'cancelled', 'archived' }
local CODES = { pending = 0, running = 1, completed = 2, failed = 3, cancelled = 4, archived = 5 }
local NONE = 0 / 0 -- an instant that has not come
local HEAD, EVENT = '>BI4I4I4dddddddd', '>BI4I4I4dd'
local TAIL = struct.size(HEAD) + 1

local function task_key(id) return P .. ':task:' .. id end
local function lanes_key(status) return P .. ':lanes:' .. NAMES[status] end
local function listed_key(status, lane) return P .. ':listed:' .. NAMES[status] .. ':' .. lane end

local function clock(given)
  if given ~= '' then return tonumber(given) end
  local time = call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

-- The instant a task begins to wait: see model/ranking.py.
local function due_at(available_at, created_at) return math.max(available_at, created_at) end

-- packing.py knows this layout too.
local function encode(t)
  return struct_pack(HEAD, t.status, t.attempt, t.failures, t.version, t.timeout, t.available_at, t.rank, t.created_at,
    t.updated_at, t.lease_expires_at, t.started_at, t.completed_at)
    .. t.lane .. '\0' .. t.worker_id .. '\0' .. t.lease_id
end

-- Nil if these are not the bytes of a state. A script that would stop at them leaves its other writes half done.
local function decode(s)
  if not s or #s < TAIL then return nil end
  local status, attempt, failures, version, timeout, available_at, rank, created_at, updated_at, lease_expires_at,
    started_at, completed_at = struct_unpack(HEAD, s)
  local lane_ends = find(s, '\0', TAIL, true)
  local worker_ends = lane_ends and find(s, '\0', lane_ends + 1, true)
  if not worker_ends or not NAMES[status] then return nil end
  return { -- built at once: a table that grows field by field is built five times
    status = status, attempt = attempt, failures = failures, version = version, timeout = timeout,
    available_at = available_at, rank = rank, created_at = created_at, updated_at = updated_at,
    lease_expires_at = lease_expires_at, started_at = started_at, completed_at = completed_at,
    lane = slice(s, TAIL, lane_ends - 1), worker_id = slice(s, lane_ends + 1, worker_ends - 1),
    lease_id = slice(s, worker_ends + 1),
  }
end

local function event(t, error)
  return struct_pack(EVENT, t.status, t.version, t.attempt, t.failures, t.updated_at, t.available_at)
    .. t.worker_id .. '\0' .. (error and '=' .. error or '')
end

-- The sorted sets change once a key and script, however many tasks do.
local adds, removals = {}, {}

local function put(key, score, id)
  local list = adds[key]
  if not list then list = {}; adds[key] = list end
  list[#list + 1] = score
  list[#list + 1] = id
end

local function take(key, id)
  local list = removals[key]
  if not list then list = {}; removals[key] = list end
  list[#list + 1] = id
end

local listed, unlisted = {}, {} -- lanes by status and name: tasks came or went

local function list(status, lane, created_at, id)
  put(listed_key(status, lane), created_at, id)
  local newest = listed[status] or {}
  listed[status] = newest
  newest[lane] = math.max(newest[lane] or created_at, created_at)
end

local function unlist(status, lane, id)
  take(listed_key(status, lane), id)
  unlisted[status] = unlisted[status] or {}
  unlisted[status][lane] = true
end

local filled = {} -- ready lanes that were empty and now hold something
local changed_lanes = {} -- those whose ready tasks have changed

local function wait_in_line(t, id, now)
  if t.available_at > now then
    put(P .. ':delayed', t.available_at, id)
  else
    local key = P .. ':ready:' .. t.lane
    if not adds[key] and call('EXISTS', key) == 0 then filled[t.lane] = true end
    put(key, t.rank, id)
    changed_lanes[t.lane] = true
  end
end

local function coming(now)
  local head = call('ZRANGE', P .. ':delayed', 0, 0, 'WITHSCORES')
  return head[2] and tonumber(head[2]) - now
end

local head -- seconds until the next task was due, before this script delayed some

local function move(now)
  if adds[P .. ':delayed'] then head = coming(now) end
  for key, ids in pairs(removals) do call('ZREM', key, unpack(ids)) end
  for key, pairs_ in pairs(adds) do call('ZADD', key, unpack(pairs_)) end
  for status, lanes in pairs(listed) do
    for lane, newest in pairs(lanes) do call('ZADD', lanes_key(status), 'GT', newest, lane) end
  end
  for status, lanes in pairs(unlisted) do
    for lane in pairs(lanes) do
      if call('EXISTS', listed_key(status, lane)) == 0 then call('ZREM', lanes_key(status), lane) end
    end
  end
end

-- Whoever waits found its lanes empty, so only a lane that was empty is news; and so is an earlier time to wake up.
local function publish(now)
  local lanes = {}
  for lane in pairs(filled) do lanes[#lanes + 1] = lane end
  local after = adds[P .. ':delayed'] and coming(now)
  local sooner = after and (not head or after < head)
  if #lanes > 0 or sooner then
    local due_in = sooner and string.format('%.17g', after) or 'null'
    call('PUBLISH', P .. ':news', '[' .. due_in .. ',[' .. table.concat(lanes, ',') .. ']]')
  end
end

-- Raises for a user without any right to leases, a producer. Called before anything is written: a script that is refused
-- half-way would leave half of its writes.
local function check_worker() call('EXISTS', P .. ':leases') end

-- The hash that holds a note: those of administrators and the audit trail have keys of their own.
local function note_place(name)
  local folder = string.match(name, '^(%l+)/')
  return P .. ((folder == 'admin' or folder == 'audit') and ':' .. folder or ':notes')
end

local function receipt(nonce) return call('GET', P .. ':receipt:' .. nonce) end
local function sign(nonce, answer) call('SET', P .. ':receipt:' .. nonce, answer, 'EX', RECEIPT) end

-- A task as the caller reads it.
local function append(rows, id)
  local row = call('HMGET', task_key(id), 's', 'd', 'p', 'r', 'e', 'k', 'a')
  if row[1] then
    rows[#rows + 1] = id
    for i = 1, 7 do rows[#rows + 1] = row[i] end
  end
end
