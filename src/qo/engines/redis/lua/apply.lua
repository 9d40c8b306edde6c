-- ARGV = nonce, now or '', batch, result or payload...
--   batch: per change {id, guard, to, lease_id, grace, delay, lease, failures, has_result, error, started_at, kind,
--     run_at, priority, promotion, has_payload, log, progress, group}
-- Returns for each change '1' (applied now, or before) or '0'.
local nonce, now, batch = ARGV[1], current_time(ARGV[2]), cmsgpack.unpack(ARGV[3])
check_lease_rights()
local receipt = read_receipt(nonce)
if receipt then return receipt end

local allows = {
  held = function(t, lease_id) return t.status == RUNNING and t.lease_id == lease_id end,
  expired = function(t, lease_id, grace)
    return t.status == RUNNING and t.lease_id == lease_id and not (t.lease_expires_at > now - grace)
  end,
  waiting = function(t) return t.status == PENDING end,
  blocked = function(t) return t.status == PENDING and t.available_at == BLOCKED_AT end,
  not_due = function(t) return t.status == PENDING and t.available_at > now end,
  unfinished = function(t) return t.status <= RUNNING end,
  ended = function(t) return t.status >= COMPLETED and t.status < ARCHIVED end,
  replayable = function(t) return t.status > COMPLETED end,
  finished = function(t) return t.status >= COMPLETED end,
}

-- Move a task from the indexes of its old state to those of the new one.
local function reindex(id, old, new)
  if old.status == RUNNING and new.status ~= RUNNING then remove_later(PREFIX .. ':leases', id) end
  if old.status == PENDING then
    remove_later(PREFIX .. ':ready:' .. old.lane, ready_member(old.created_at, id))
    changed_lanes[old.lane] = true
    remove_later(PREFIX .. ':delayed', id)
  end
  if new.status == PENDING then index_pending(new, id, now) end
  if new.status == RUNNING then add_later(PREFIX .. ':leases', new.lease_expires_at, id) end
  if new.status ~= old.status or new.lane ~= old.lane then
    unindex_status(old.status, old.lane, id)
    index_status(new.status, new.lane, new.created_at, id)
  end
end

-- When the changed task is available, and its rank: see `_place` in model/change.py.
local function place(old, delay, run_at, promotion)
  if not (delay or run_at or promotion) then return old.available_at, old.rank end
  local old_due_at = due_at(old.available_at, old.created_at)
  local available_at, new_due_at = old.available_at, old_due_at
  if delay then
    available_at, new_due_at = now + delay, now + delay
  elseif run_at then
    available_at, new_due_at = math.max(now, run_at), math.max(now, run_at)
  end
  return available_at, new_due_at + (promotion or math.max(0, old.rank - old_due_at))
end

-- The name of the lane for another priority: its last number. Names that old builds wrote have none.
local function lane_for(lane, priority)
  local head = string.match(lane, '^(.*,)%d+%]$') or slice(lane, 1, -2) .. ','
  return head .. priority .. ']'
end

-- The name of the lane for another group, the first of its needs. Names contain no quotes.
local function lane_of_group(lane, group)
  local head, needs = string.match(lane, '^(%["[^"]*","[^"]*",%[)(.*)$')
  needs = string.gsub(needs, '^"![^"]*",?', '', 1)
  return head .. group .. (slice(needs, 1, 1) == ']' and '' or ',') .. needs
end

local function change_task(key, old, error, change, result)
  local id, _, to, _, _, delay, lease, failures, has_result, new_error, started_at, kind, run_at, priority, promotion,
    has_payload, log, progress, group = unpack(change, 1, 19)
  local status = STATUS_CODES[to]
  local available_at, rank = place(old, delay, run_at, promotion)
  local lane = priority and lane_for(old.lane, priority) or old.lane
  if group then lane = lane_of_group(lane, group) end
  local new = {
    status = status, attempt = old.attempt, failures = failures or old.failures, version = old.version + 1,
    timeout = old.timeout, available_at = available_at, rank = rank,
    created_at = old.created_at, updated_at = now, lease_expires_at = lease and now + lease or NO_TIME,
    started_at = status == PENDING and NO_TIME or started_at or old.started_at,
    completed_at = status < COMPLETED and NO_TIME
      or old.completed_at == old.completed_at and old.completed_at or now, -- NO_TIME does not equal itself
    lane = lane, worker_id = status == PENDING and '' or old.worker_id, lease_id = old.lease_id,
  }
  if status == COMPLETED then new_error = false else new_error = new_error or error end
  local fields = { 's', encode_state(new) }
  if status ~= RUNNING then fields[3], fields[4] = 'h' .. new.version, encode_event(new, new_error) end -- a renewal has none
  if has_payload then fields[#fields + 1] = 'p'; fields[#fields + 1] = result end
  if has_result then fields[#fields + 1] = 'r'; fields[#fields + 1] = result end
  if new_error and new_error ~= error then fields[#fields + 1] = 'e'; fields[#fields + 1] = new_error end
  if kind and new_error then fields[#fields + 1] = 'k'; fields[#fields + 1] = kind end
  if log and status ~= RUNNING then fields[#fields + 1] = 'l' .. new.version; fields[#fields + 1] = log end
  if progress then fields[#fields + 1] = 'g'; fields[#fields + 1] = progress end
  if status == ARCHIVED then fields[#fields + 1] = 'a'; fields[#fields + 1] = STATUS_NAMES[old.status] end
  if priority then -- the first value of the description
    fields[#fields + 1] = 'd'
    fields[#fields + 1] = string.gsub(call('HGET', key, 'd') or '', '^%[%d+', '[' .. priority, 1)
  end
  call('HSET', key, unpack(fields))
  if error and not new_error then call('HDEL', key, 'e', 'k') end
  if old.status == ARCHIVED then call('HDEL', key, 'a') end
  if status == PENDING and old.status > RUNNING then call('HDEL', key, 'r') end
  reindex(id, old, new)
end

local answers, has_written = {}, false
for i, change in ipairs(batch) do
  local id, guard, to, lease_id, grace = unpack(change, 1, 5)
  local key = task_key(id)
  local stored = call('HMGET', key, 's', 'e')
  local t = stored[1] and decode_state(stored[1])
  if not t then
    answers[i] = '0'
  elseif allows[guard](t, lease_id, grace) then
    change_task(key, t, stored[2], change, ARGV[3 + i])
    answers[i], has_written = '1', true
  else
    local is_repeat = guard == 'held' and lease_id and t.lease_id == lease_id and t.status == STATUS_CODES[to]
    answers[i] = is_repeat and '1' or '0'
  end
end

write_indexes(now)
refresh_heads(changed_lanes)
local answer = table.concat(answers)
if has_written then write_receipt(nonce, answer) end
notify(now)
return answer
