-- ARGV = nonce, now or '', behind, batch, payload...
--   batch: per task {id, lane, description, timeout, delay, run_at, weight, window}; window only with an idempotency key
--   behind: steps of 3 microseconds the first task's stamp lies behind now, so that a batch keeps its order
-- Answers '1' (new), '0', or 'm' (moved to the archive a moment ago: look there) for each.
local nonce, now, behind, batch = ARGV[1], clock(ARGV[2]), tonumber(ARGV[3]), cmsgpack.unpack(ARGV[4])
local before = receipt(nonce)
if before then return before end

local answers, new_lanes = {}, {}

local function admit(stored, window, at)
  if not stored then return 1 end
  if window and stored.status >= COMPLETED and at - stored.created_at >= window then return stored.version + 1 end
end

for i, new in ipairs(batch) do
  local id, lane, description, timeout, delay, run_at, weight, window = unpack(new, 1, 8)
  local at = now - 0.000003 * (behind - i + 1)
  local there = call('HMGET', task_key(id), 's', 'm')
  local stored = there[1] and decode(there[1])
  local is_damaged = there[1] and not stored -- it keeps its place, and its bytes
  local version = not there[2] and not is_damaged and admit(stored, window, at)
  if version then
    if stored then
      call('HDEL', task_key(id), 'r', 'e')
      take(listed_key(stored.status, stored.lane), id)
    end
    local available_at = run_at or at + delay
    local t = {
      status = PENDING, attempt = 0, failures = 0, version = version, timeout = timeout, available_at = available_at,
      rank = due_at(available_at, at) + weight, created_at = at, updated_at = at, lease_expires_at = NONE, started_at = NONE,
      completed_at = NONE, lane = lane, worker_id = '', lease_id = '',
    }
    call('HSET', task_key(id), 's', encode(t), 'd', description, 'p', ARGV[4 + i], 'h' .. version, event(t))
    put(listed_key(PENDING, lane), at, id)
    wait_in_line(t, id, now)
    new_lanes[lane] = true
    answers[i] = '1'
  else
    answers[i] = there[2] and 'm' or '0'
  end
end

move(now)
for lane in pairs(new_lanes) do
  if call('SADD', P .. ':lanes', lane) == 1 then call('SET', P .. ':lanes:tag', nonce) end
end
local answer = table.concat(answers)
if next(new_lanes) then sign(nonce, answer) end
publish(now)
return answer
