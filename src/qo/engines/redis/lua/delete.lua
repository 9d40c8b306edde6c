-- ARGV = nonce, ids. Answers '1' (gone) or '0' (unknown, or neither finished nor set aside) for each.
local nonce, ids = ARGV[1], cmsgpack.unpack(ARGV[2])
check_worker()
local before = receipt(nonce)
if before then return before end

local function unfollow(id)
  local first = call('HGET', P .. ':followed', id)
  if first then
    call('HDEL', P .. ':followed', id)
    call('HDEL', P .. ':followers', first)
  end
end

local answers, written = {}, false
for i, id in ipairs(ids) do
  local s = call('HGET', task_key(id), 's')
  local t = s and decode(s)
  if t and t.status >= COMPLETED then
    call('UNLINK', task_key(id))
    unlist(t.status, t.lane, id)
    unfollow(id)
    answers[i], written = '1', true
  elseif s and not (t and call('ZSCORE', listed_key(t.status, t.lane), id))
    and call('HDEL', P .. ':notes', 'quarantine/tasks/' .. id) == 1 then -- it is damaged, and was set aside
    call('UNLINK', task_key(id))
    unfollow(id)
    answers[i], written = '1', true
  else
    if not s then -- the trace of one that was moved
      call('UNLINK', task_key(id))
      unfollow(id)
    end
    answers[i] = '0'
  end
end
move()
local answer = table.concat(answers)
if written then sign(nonce, answer) end
return answer
