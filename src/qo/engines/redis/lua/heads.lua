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
-- group is one set of capabilities, in one queue or in all queues: each head is in both groups. Tasks of a limited group
-- (model/group.py), whose name is the first of their needs, are in the groups of their capabilities.
local HEADS, NEEDS = PREFIX .. ':head', PREFIX .. ':needs'

local parsed_lanes = {} -- by name

local function parse_lane(lane)
  local names = cjson.decode(lane)
  local queue, type, needs = names[1], names[2], names[3]
  local name = needs[1] and slice(needs[1], 1, 1) == '!' and slice(table.remove(needs, 1), 2) or nil
  local text = table.concat(needs, ' ')
  return {
    queue = queue, type = type, needs = needs, needs_text = text, groups = { '*:' .. text, '=' .. queue .. ':' .. text },
    limit_key = name and type .. ' ' .. name, -- `group_key` in model/group.py
  }
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

-- Changes of heads are collected, so that a script that changes many lanes runs one command per key.
local removed_heads, added_heads, records, removed_records = {}, {}, {}, {}
local typed, untyped, needed = {}, {}, {}

local function remove_head(lane, parsed, record)
  local kind, member = slice(record, 1, 1), slice(record, 2) .. lane
  for _, group in ipairs(parsed.groups) do append(removed_heads, heads_key(kind, group), member) end
end

local function write_head(lane, parsed, kind, score, member)
  for _, group in ipairs(parsed.groups) do append(added_heads, heads_key(kind, group), score, member .. lane) end
  append(records, HEADS, lane, kind .. member)
end

local function add_lane(lane, parsed)
  append(typed, PREFIX .. ':typed:' .. parsed.type, lane)
  needed[parsed.needs_text] = (needed[parsed.needs_text] or 0) + 1
end

local function remove_lane(lane, parsed)
  append(removed_records, HEADS, lane)
  append(untyped, PREFIX .. ':typed:' .. parsed.type, lane)
  needed[parsed.needs_text] = (needed[parsed.needs_text] or 0) - 1
end

local function write_heads()
  call_each('ZREM', removed_heads)
  call_each('ZADD', added_heads)
  call_each('HDEL', removed_records)
  call_each('HSET', records)
  call_each('SREM', untyped)
  call_each('SADD', typed)
  for needs, change in pairs(needed) do
    if change ~= 0 and call('HINCRBY', NEEDS, needs, change) <= 0 then call('HDEL', NEEDS, needs) end
  end
  removed_heads, added_heads, records, removed_records, typed, untyped, needed = {}, {}, {}, {}, {}, {}, {}
end

-- `first` and `score`: the first ready task of the lane. `record`: its head so far.
local function change_head(lane, record, first, score)
  local member = first and struct_pack('>d', tonumber(score)) .. first
  local parsed = not (record and slice(record, 2) == member) and parsed_lane(lane)
  if not parsed then return end
  if record then remove_head(lane, parsed, record) end
  if member then
    if not record then
      add_lane(lane, parsed)
      filled_lanes[lane] = true
    end
    -- The rank of a task of priority 0 is the time since which it waits, so its head is promoted from the beginning.
    write_head(lane, parsed, slice(lane, -3) == ',0]' and 'p' or 'u', score, member)
  elseif record then
    remove_lane(lane, parsed)
  end
end

-- Call after a change of the ready tasks of these lanes. By lane: as in `changed_lanes`, or a cursor at the first task that
-- is left.
local function refresh_heads(lanes)
  local names = {}
  for lane in pairs(lanes) do names[#names + 1] = lane end
  if #names == 0 then return end
  local known = call('HMGET', HEADS, unpack(names))
  for i, lane in ipairs(names) do
    local change, record = lanes[lane], known[i]
    if type(change) == 'table' then
      change_head(lane, record, change.member, change.score)
    elseif change == true or not record or struct_unpack('>d', record, 2) >= change then
      change_head(lane, record, unpack(call('ZRANGE', PREFIX .. ':ready:' .. lane, 0, 0, 'WITHSCORES')))
    end -- otherwise all tasks were added behind the head
  end
  write_heads()
end
