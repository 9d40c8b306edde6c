-- Runs before the prelude in the script `add`, for one task without an idempotency key and a batch that is ready and comes after the head
-- of its lane. Most submits of single tasks are of this kind, and creating the functions of the prelude takes longer than this
-- block. It writes the same as add.lua. In every other case it writes nothing and add.lua runs.
do
  local call, prefix, new = redis.call, KEYS[1], #ARGV == 5 and cmsgpack.unpack(ARGV[4])[1]
  if new and not new[8] and not new[10] and call('HGET', prefix .. ':format', 'format') == '{format}' then
    local id, lane, description, timeout, delay, run_at, weight = unpack(new, 1, 7)
    local now, head = tonumber(ARGV[2]), call('HGET', prefix .. ':head', lane)
    if not now then
      local time = call('TIME')
      now = tonumber(time[1]) + tonumber(time[2]) / 1000000
    end
    local available_at = run_at or now + delay
    local rank = math.max(available_at, now) + weight
    local is_after_head = head and available_at <= now and struct.unpack('>d', head, 2) < rank
    local task, receipt = prefix .. ':task:' .. id, prefix .. ':receipt:' .. ARGV[1]
    if is_after_head and call('EXISTS', task, receipt) == 0 then
      local unset = 0 / 0
      local state = struct.pack('>BI4I4I4dddddddd', 0, 0, 0, 1, timeout, available_at, rank, now, now, unset, unset, unset)
      local event = struct.pack('>BI4I4I4dd', 0, 1, 0, 0, now, available_at)
      call('HSET', task, 's', state .. lane .. '\0\0', 'd', description, 'p', ARGV[5], 'h1', event .. '\0')
      call('ZADD', prefix .. ':listed:pending:' .. lane, now, id)
      call('ZADD', prefix .. ':lanes:pending', 'GT', now, lane)
      call('ZADD', prefix .. ':ready:' .. lane, rank, struct.pack('>d', now) .. id) -- ready_member in prelude.lua
      call('SET', receipt, '1', 'EX', 30)
      return '1'
    end
  end
end
