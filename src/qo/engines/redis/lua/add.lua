-- ARGV = nonce, now or '', behind, batch, payload...
--   batch: per task {id, lane, description, timeout, delay, run_at, weight, window, next_id}; the last two only with a key
--   behind: steps of 3 microseconds the first task's stamp lies behind now, so that a batch keeps its order, also
--   of tasks that share a run_at: see `created` in model/task.py
-- Answers '1' (new), '0', or 'm' (moved to the archive a moment ago: look there) for each; with the id behind it if it is
-- another one, the last under the key.
local nonce, now, behind, batch = ARGV[1], clock(ARGV[2]), tonumber(ARGV[3]), cmsgpack.unpack(ARGV[4])
local before = receipt(nonce)
if before then return before end

local answers, has_new = {}, false

local function is_over(stored, window, at)
  return window and stored.status >= COMPLETED and at - stored.created_at >= window
end

local function last_under(id, window)
  local last = window and call('HGET', P .. ':followers', id)
  return last and call('EXISTS', task_key(last)) == 1 and last or id
end

local function follow(id, next_id)
  local last = call('HGET', P .. ':followers', id)
  if last then call('HDEL', P .. ':followed', last) end
  call('HSET', P .. ':followers', id, next_id)
  call('HSET', P .. ':followed', next_id, id)
end

for i, new in ipairs(batch) do
  local first, lane, description, timeout, delay, run_at, weight, window, next_id = unpack(new, 1, 9)
  local id = last_under(first, window)
  local at = now - 0.000003 * (behind - i + 1)
  local there = call('HMGET', task_key(id), 's', 'm')
  local stored = there[1] and decode(there[1])
  local is_damaged = there[1] and not stored -- it keeps its place, and its bytes
  local is_new = not stored and not there[2] and not is_damaged
  if stored and next_id and is_over(stored, window, at) and call('EXISTS', task_key(next_id)) == 0 then
    id, is_new = next_id, true
    follow(first, id)
  end
  if is_new then
    local available_at = run_at or at + delay
    local t = {
      status = PENDING, attempt = 0, failures = 0, version = 1, timeout = timeout, available_at = available_at,
      rank = due_at(run_at and run_at - (now - at) or available_at, at) + weight, created_at = at, updated_at = at, lease_expires_at = NONE, started_at = NONE,
      completed_at = NONE, lane = lane, worker_id = '', lease_id = '',
    }
    call('HSET', task_key(id), 's', encode(t), 'd', description, 'p', ARGV[4 + i], 'h1', event(t))
    list(PENDING, lane, at, id)
    wait_in_line(t, id, now)
    has_new = true
    answers[i] = '1'
  else
    answers[i] = there[2] and 'm' or '0'
  end
  if id ~= first then answers[i] = answers[i] .. id end
end

move(now)
refresh_heads(changed_lanes)
local answer = table.concat(answers, ' ')
if has_new then sign(nonce, answer) end
publish(now)
return answer
