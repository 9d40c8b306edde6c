-- For scripts that change ready tasks, and for `claim`. The first ready task of a lane is its head. Heads are kept in sorted
-- sets, so that a claim finds the lanes that come first without reading the others.
--
--   :head                hash  by lane: 'u' or 'p' (unpromoted, promoted), then rank, created_at and id of its head; only
--                              lanes with ready tasks
--   :unpromoted:<group>  zset  heads by rank
--   :promoted:<group>    zset  heads by the time since which they wait, once a claim has seen that their rank is past
--   :needs               hash  by needs: the number of lanes with ready tasks
--   :typed:<type>        set   lanes of this type with ready tasks
--
-- A member of :unpromoted and :promoted is rank, created_at, id and lane, so that heads of equal score are ordered too. A
-- group is one set of needs, in one queue or in all queues: each head is in both groups.
local HEADS, NEEDS = PREFIX .. ':head', PREFIX .. ':needs'

local parsed_lanes = {} -- by name

local function parse_lane(lane)
  local names = cjson.decode(lane)
  local queue, type, needs = names[1], names[2], names[3]
  local text = table.concat(needs, ' ')
  return { queue = queue, type = type, needs = needs, needs_text = text, groups = { '*:' .. text, '=' .. queue .. ':' .. text } }
end

-- Queue, type, needs and groups of a lane; false if the name cannot be parsed.
local function parsed_lane(lane)
  local parsed = parsed_lanes[lane]
  if parsed == nil then
    local is_lane, result = pcall(parse_lane, lane)
    parsed = is_lane and result
    parsed_lanes[lane] = parsed
  end
  return parsed
end

local function heads_key(kind, group) return PREFIX .. (kind == 'p' and ':promoted:' or ':unpromoted:') .. group end

local function remove_head(lane, parsed, record)
  local kind, member = slice(record, 1, 1), slice(record, 2) .. lane
  for _, group in ipairs(parsed.groups) do call('ZREM', heads_key(kind, group), member) end
end

local function write_head(lane, parsed, kind, score, member)
  for _, group in ipairs(parsed.groups) do call('ZADD', heads_key(kind, group), score, member .. lane) end
  call('HSET', HEADS, lane, kind .. member)
end

local function remove_empty_lane(lane, parsed)
  call('HDEL', HEADS, lane)
  call('SREM', PREFIX .. ':typed:' .. parsed.type, lane)
  if call('HINCRBY', NEEDS, parsed.needs_text, -1) <= 0 then call('HDEL', NEEDS, parsed.needs_text) end
end

-- Call after a change of the ready tasks of this lane.
local function refresh_head(lane)
  local parsed = parsed_lane(lane)
  if not parsed then return end
  local first = call('ZRANGE', PREFIX .. ':ready:' .. lane, 0, 0, 'WITHSCORES')
  local record = call('HGET', HEADS, lane)
  local member = first[1] and struct_pack('>d', tonumber(first[2])) .. first[1]
  if record and slice(record, 2) == member then return end
  if record then remove_head(lane, parsed, record) end
  if not member then
    if record then remove_empty_lane(lane, parsed) end
    return
  end
  if not record then
    call('SADD', PREFIX .. ':typed:' .. parsed.type, lane)
    call('HINCRBY', NEEDS, parsed.needs_text, 1)
  end
  -- The rank of a task of priority 0 is the time since which it waits, so its head is promoted from the beginning.
  write_head(lane, parsed, slice(lane, -3) == ',0]' and 'p' or 'u', first[2], member)
end

local function refresh_heads(lanes)
  for lane in pairs(lanes) do refresh_head(lane) end
end
