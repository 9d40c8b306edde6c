-- ARGV = nonce, ids
-- Returns for each id '1' if the task was deleted, or '0' if it is unknown, or neither finished nor set aside.
local nonce, ids = ARGV[1], cmsgpack.unpack(ARGV[2])
check_lease_rights()
local receipt = read_receipt(nonce)
if receipt then return receipt end

local function unfollow(id)
  local first = call('HGET', PREFIX .. ':followed', id)
  if first then
    call('HDEL', PREFIX .. ':followed', id)
    call('HDEL', PREFIX .. ':followers', first)
  end
end

local function leave_batch(id)
  local group = call('HGET', task_key(id), 'b')
  if group then remove_later(batch_key(group), id) end
end

local answers, has_written = {}, false
for i, id in ipairs(ids) do
  local s = call('HGET', task_key(id), 's')
  local t = s and decode_state(s)
  if t and t.status >= COMPLETED then
    leave_batch(id)
    call('UNLINK', task_key(id))
    unindex_status(t.status, t.lane, id)
    unfollow(id)
    answers[i], has_written = '1', true
  elseif s and not (t and call('ZSCORE', listed_key(t.status, t.lane), id))
    and call('HDEL', PREFIX .. ':notes', 'quarantine/tasks/' .. id) == 1 then -- damaged and set aside
    leave_batch(id)
    call('UNLINK', task_key(id))
    unfollow(id)
    answers[i], has_written = '1', true
  else
    if not s then -- remove the marker of a task that was moved to the archive
      call('UNLINK', task_key(id))
      unfollow(id)
    end
    answers[i] = '0'
  end
end
write_indexes()
local answer = table.concat(answers)
if has_written then write_receipt(nonce, answer) end
return answer
