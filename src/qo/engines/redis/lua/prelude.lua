-- Prepended to every script. All keys share one hash tag, so that Redis Cluster keeps them in one slot.
--
--   KEYS[1] = "{prefix}", followed by:
--     :task:<id>               hash    s state (packed), d description (JSON), p payload, r result, e error,
--                                      k failure kind, a status before it was archived, b batch,
--                                      g progress: the JSON text of [number, text],
--                                      h<version> one event each (packed), l<version> its log; or only m: moved to the archive
--     :lanes:<status>          zset    lanes that have tasks of this status; the score is not before the created_at of any
--                                      of these tasks. A lane is the JSON text of [queue, type, needs, priority]
--     :ready:<lane>            zset    pending tasks that are due: created_at (packed) and id, by rank; see heads.lua.
--                                      Redis orders members of equal rank by their bytes: earlier submitted first
--     :delayed                 zset    pending tasks that are not in :ready: ids by available_at
--     :followers               hash    the last task under an idempotency key, by the first one
--     :followed                hash    the first task under an idempotency key, by the last one
--     :leases                  zset    running tasks: ids by lease_expires_at
--     :listed:<status>:<lane>  zset    ids by created_at; its size is the count
--     :batch:<batch>           zset    the tasks of a batch: ids by created_at. Builds before this key was added leave ids of
--                                      tasks that are gone; readers skip them, and `delete` removes them
--     :receipt:<nonce>         string  the answer of a write, for a caller that repeats it because the answer was lost
--     :notes                   hash    name -> version, a space, data
--     :admin, :audit           hash    the same for notes whose names begin with admin/ or audit/, so that ACLs can keep
--                                      roles out of these keys. No other key begins with `:a`
--     :format                  hash    format, since, qo: which builds may use this queue (docs/formats.md); migrating, while a process
--                                      converts it: see migrate.lua
--     :fence                   string  written after each write that replicas must confirm (replication.py)
--     :news                    channel [seconds until the next task is due or null, [lanes that now have ready tasks]]
--
-- The time is the server's, unless the caller (a test) passes one. Numbers are passed to redis.call as numbers, because it
-- writes all 17 digits and tostring() does not. Scripts do not read payloads and results.
local PREFIX = KEYS[1]
local call, struct_pack, struct_unpack, find, slice = redis.call, struct.pack, struct.unpack, string.find, string.sub
-- A newer qo may have migrated the queue since the caller opened it.
local FORMAT = {format}
local function newer_format_error()
  return redis.error_reply('QOFORMAT this queue was written by a newer qo; use qo '
    .. (call('HGET', PREFIX .. ':format', 'qo') or '') .. ' or newer')
end
local stored_format = call('HMGET', PREFIX .. ':format', 'since', 'format', 'migrating')
if stored_format[1] and tonumber(stored_format[1]) > FORMAT then return newer_format_error() end
local RECEIPT_TTL = 30 -- seconds; longer than callers repeat a write

local PENDING, RUNNING, COMPLETED, ARCHIVED = 0, 1, 2, 5
local BLOCKED_AT = 6.4e9 -- available_at of a task that waits for other tasks of its workflow; see model/task.py
local STATUS_NAMES = { [0] = 'pending', 'running', 'completed', 'failed', 'cancelled', 'archived' }
local STATUS_CODES = { pending = 0, running = 1, completed = 2, failed = 3, cancelled = 4, archived = 5 }
local NO_TIME = 0 / 0 -- NaN: an unset time
local STATE_FORMAT, EVENT_FORMAT = '>BI4I4I4dddddddd', '>BI4I4I4dd'
local STATE_TAIL = struct.size(STATE_FORMAT) + 1 -- where the texts of a state begin

local function task_key(id) return PREFIX .. ':task:' .. id end
local function lanes_key(status) return PREFIX .. ':lanes:' .. STATUS_NAMES[status] end
local listed_keys = { [0] = {}, {}, {}, {}, {}, {} } -- by status and lane: a batch has many tasks and few lanes
local function listed_key(status, lane)
  local key = listed_keys[status][lane]
  if not key then
    key = PREFIX .. ':listed:' .. STATUS_NAMES[status] .. ':' .. lane
    listed_keys[status][lane] = key
  end
  return key
end

local function current_time(given)
  if given ~= '' then return tonumber(given) end
  local time = call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

-- The time since which a task waits: see model/ranking.py.
local function due_at(available_at, created_at) return math.max(available_at, created_at) end

-- task_fields.py uses the same layout.
local function encode_state(t)
  return struct_pack(STATE_FORMAT, t.status, t.attempt, t.failures, t.version, t.timeout, t.available_at, t.rank, t.created_at,
    t.updated_at, t.lease_expires_at, t.started_at, t.completed_at)
    .. t.lane .. '\0' .. t.worker_id .. '\0' .. t.lease_id
end

-- Nil if the bytes are damaged. An error would stop the script after some of its writes.
local function decode_state(s)
  if not s or #s < STATE_TAIL then return nil end
  local status, attempt, failures, version, timeout, available_at, rank, created_at, updated_at, lease_expires_at,
    started_at, completed_at = struct_unpack(STATE_FORMAT, s)
  local lane_ends = find(s, '\0', STATE_TAIL, true)
  local worker_ends = lane_ends and find(s, '\0', lane_ends + 1, true)
  if not worker_ends or not STATUS_NAMES[status] then return nil end
  return { -- one constructor, because a table that grows field by field is rehashed five times
    status = status, attempt = attempt, failures = failures, version = version, timeout = timeout,
    available_at = available_at, rank = rank, created_at = created_at, updated_at = updated_at,
    lease_expires_at = lease_expires_at, started_at = started_at, completed_at = completed_at,
    lane = slice(s, STATE_TAIL, lane_ends - 1), worker_id = slice(s, lane_ends + 1, worker_ends - 1),
    lease_id = slice(s, worker_ends + 1),
  }
end

local function encode_event(t, error)
  return struct_pack(EVENT_FORMAT, t.status, t.version, t.attempt, t.failures, t.updated_at, t.available_at)
    .. t.worker_id .. '\0' .. (error and '=' .. error or '')
end

-- Changes of sorted sets are collected, so that a script runs one ZADD and one ZREM per key.
local adds, removals = {}, {}

-- Append one or two values to the list of a key.
local function append(lists, key, value, second)
  local list = lists[key]
  if not list then list = {}; lists[key] = list end
  list[#list + 1] = value
  list[#list + 1] = second
end

local function call_each(command, lists)
  for key, list in pairs(lists) do call(command, key, unpack(list)) end
end

local function add_later(key, score, id) append(adds, key, score, id) end
local function remove_later(key, id) append(removals, key, id) end

local listed, unlisted = {}, {} -- by status: lanes that got tasks, with the newest created_at; lanes that lost tasks

local function index_status(status, lane, created_at, id)
  add_later(listed_key(status, lane), created_at, id)
  local newest = listed[status]
  if not newest then newest = {}; listed[status] = newest end
  if not newest[lane] or newest[lane] < created_at then newest[lane] = created_at end
end

local function unindex_status(status, lane, id)
  remove_later(listed_key(status, lane), id)
  unlisted[status] = unlisted[status] or {}
  unlisted[status][lane] = true
end

local filled_lanes = {} -- lanes that had no ready task and now have one
local changed_lanes = {} -- lanes whose ready tasks have changed: the lowest rank that was added, or true if any was removed

-- The member of a task in :ready. The order of packed times is that of their bytes.
local function ready_member(created_at, id) return struct_pack('>d', created_at) .. id end

local function index_pending(t, id, now)
  if t.available_at > now then
    add_later(PREFIX .. ':delayed', t.available_at, id)
  else
    add_later(PREFIX .. ':ready:' .. t.lane, t.rank, ready_member(t.created_at, id))
    local change = changed_lanes[t.lane]
    if not change or change ~= true and t.rank < change then changed_lanes[t.lane] = t.rank end
  end
end

-- Seconds until the next delayed task is due.
local function next_due_in(now)
  local first = call('ZRANGE', PREFIX .. ':delayed', 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2]) - now
end

-- Remove the lanes that have no task of this status. Often all or none are empty, which one command determines.
local function remove_empty_lanes(status, lanes)
  local names, keys = {}, {}
  for lane in pairs(lanes) do
    names[#names + 1] = lane
    keys[#keys + 1] = listed_key(status, lane)
  end
  local existing = #keys > 0 and call('EXISTS', unpack(keys)) or 0
  if existing == #keys then return end
  local empty = {}
  for i, key in ipairs(keys) do
    if existing == 0 or call('EXISTS', key) == 0 then empty[#empty + 1] = names[i] end
  end
  call('ZREM', lanes_key(status), unpack(empty))
end

local due_in_before -- `next_due_in` before this script delayed tasks

local function write_indexes(now)
  if adds[PREFIX .. ':delayed'] then due_in_before = next_due_in(now) end
  call_each('ZREM', removals)
  call_each('ZADD', adds)
  for status, lanes in pairs(listed) do
    local scores = {}
    for lane, newest in pairs(lanes) do
      scores[#scores + 1] = newest
      scores[#scores + 1] = lane
    end
    call('ZADD', lanes_key(status), 'GT', unpack(scores))
  end
  for status, lanes in pairs(unlisted) do remove_empty_lanes(status, lanes) end
end

-- A waiting worker has found its lanes empty and knows when the next task is due. So notify it only of lanes that were
-- empty, and of an earlier due time.
local function notify(now)
  local lanes = {}
  for lane in pairs(filled_lanes) do lanes[#lanes + 1] = lane end
  local due_in = adds[PREFIX .. ':delayed'] and next_due_in(now)
  local is_earlier = due_in and (not due_in_before or due_in < due_in_before)
  if #lanes > 0 or is_earlier then
    local shown = is_earlier and string.format('%.17g', due_in) or 'null'
    call('PUBLISH', PREFIX .. ':news', '[' .. shown .. ',[' .. table.concat(lanes, ',') .. ']]')
  end
end

-- Raises an error if the user has no right to leases: producers do not. Call it before the first write, because a script
-- that is refused later keeps the writes it has made.
local function check_lease_rights() call('EXISTS', PREFIX .. ':leases') end

-- The hash that holds a note.
local function notes_key(name)
  local folder = string.match(name, '^(%l+)/')
  return PREFIX .. ((folder == 'admin' or folder == 'audit') and ':' .. folder or ':notes')
end

local function read_receipt(nonce) return call('GET', PREFIX .. ':receipt:' .. nonce) end
local function write_receipt(nonce, answer) call('SET', PREFIX .. ':receipt:' .. nonce, answer, 'EX', RECEIPT_TTL) end

local function batch_key(batch) return PREFIX .. ':batch:' .. batch end

-- Append a task as `unpack_tasks` in task_fields.py expects it: its id and nine fields.
local function append_task(rows, id)
  local row = call('HMGET', task_key(id), 's', 'd', 'p', 'r', 'e', 'k', 'a', 'b', 'g')
  if row[1] then
    rows[#rows + 1] = id
    for i = 1, 9 do rows[#rows + 1] = row[i] end
  end
end
