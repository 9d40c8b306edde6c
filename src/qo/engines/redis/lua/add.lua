-- ARGV = nonce, now or '', steps, batch, payload...
--   batch: per task {id, lane, description, timeout, delay, run_at, weight, window, next_id, name of its batch,
--     until_started}; window and
--     next_id are nil without an idempotency key
--   steps: how many steps of 3 microseconds the first task is created before now. Each task is created a step after the
--     one before it, so that a batch keeps its order: see `created` in model/task.py
-- Returns for each task '1' (new), '0' (known) or 'm' (known, and just moved to the archive), followed by the id of the
-- last task under the idempotency key if that is another id.
local nonce, now, steps, batch = ARGV[1], current_time(ARGV[2]), tonumber(ARGV[3]), cmsgpack.unpack(ARGV[4])
local receipt = read_receipt(nonce)
if receipt then return receipt end

local answers, has_new = {}, false

-- Whether the window of an idempotency key has passed, so that its next task is new.
local function is_over(stored, window, at, until_started)
  local is_past = stored.status >= COMPLETED or until_started and stored.status == RUNNING
  return window and is_past and at - stored.created_at >= window
end

local function last_under(id, window)
  local last = window and call('HGET', PREFIX .. ':followers', id)
  return last and call('EXISTS', task_key(last)) == 1 and last or id
end

local function follow(id, next_id)
  local last = call('HGET', PREFIX .. ':followers', id)
  if last then call('HDEL', PREFIX .. ':followed', last) end
  call('HSET', PREFIX .. ':followers', id, next_id)
  call('HSET', PREFIX .. ':followed', next_id, id)
end

for i, new in ipairs(batch) do
  local first, lane, description, timeout, delay, run_at, weight, window, next_id, group, until_started =
    unpack(new, 1, 11)
  local id = last_under(first, window)
  local at = now - 0.000003 * (steps - i + 1)
  local key = task_key(id)
  local there = call('HMGET', key, 's', 'm')
  local stored = there[1] and decode_state(there[1])
  local is_damaged = there[1] and not stored -- its id stays taken
  local is_new = not stored and not there[2] and not is_damaged
  if stored and next_id and is_over(stored, window, at, until_started) and call('EXISTS', task_key(next_id)) == 0 then
    id, key, is_new = next_id, task_key(next_id), true
    follow(first, id)
  end
  if is_new then
    local available_at = run_at or at + delay
    local t = {
      status = PENDING, attempt = 0, failures = 0, version = 1, timeout = timeout, available_at = available_at,
      rank = due_at(run_at and run_at - (now - at) or available_at, at) + weight, created_at = at, updated_at = at,
      lease_expires_at = NO_TIME, started_at = NO_TIME, completed_at = NO_TIME, lane = lane, worker_id = '', lease_id = '',
    }
    call('HSET', key, 's', encode_state(t), 'd', description, 'p', ARGV[4 + i], 'h1', encode_event(t))
    if group then
      call('HSET', key, 'b', group)
      add_later(batch_key(group), at, id)
    end
    index_status(PENDING, lane, at, id)
    index_pending(t, id, now)
    has_new = true
    answers[i] = '1'
  else
    answers[i] = there[2] and 'm' or '0'
  end
  if id ~= first then answers[i] = answers[i] .. id end
end

write_indexes(now)
refresh_heads(changed_lanes)
local answer = table.concat(answers, ' ')
if has_new then write_receipt(nonce, answer) end
notify(now)
return answer
