-- For scripts that change what is ready, and for `claim`. The first task of each lane, its head, stands in sorted sets, so
-- that a claim finds the lanes that come first without looking at the others.
--
--   :head                hash  lane -> set ('u' or 'p'), rank and id of its head; only lanes with something ready
--   :unpromoted:<group>  zset  heads by rank
--   :promoted:<group>    zset  heads by the instant since which they wait: their rank was not later than some claim
--   :needs               hash  needs -> number of lanes with something ready
--   :typed:<type>        set   lanes of this type with something ready
--
-- A member is rank, id and lane, so that heads of one score are in order. A group is one set of needs, in one queue or in
-- all of them: each head stands in both.
local HEADS, NEEDS = P .. ':head', P .. ':needs'

local places = {}

local function read_place(lane)
  local names = cjson.decode(lane)
  local queue, type, needs = names[1], names[2], names[3]
  local text = table.concat(needs, ' ')
  return { queue = queue, type = type, needs = needs, needs_text = text, groups = { '*:' .. text, '=' .. queue .. ':' .. text } }
end

-- Queue, type, needs and groups of a lane; false if this is not the name of one.
local function place_of(lane)
  local place = places[lane]
  if place == nil then
    local is_lane, read = pcall(read_place, lane)
    place = is_lane and read
    places[lane] = place
  end
  return place
end

local function heads_key(kind, group) return P .. (kind == 'p' and ':promoted:' or ':unpromoted:') .. group end

local function drop_head(lane, place, record)
  for _, group in ipairs(place.groups) do call('ZREM', heads_key(slice(record, 1, 1), group), slice(record, 2) .. lane) end
end

local function write_head(lane, place, kind, score, member)
  for _, group in ipairs(place.groups) do call('ZADD', heads_key(kind, group), score, member .. lane) end
  call('HSET', HEADS, lane, kind .. member)
end

local function leave_lane_empty(lane, place)
  call('HDEL', HEADS, lane)
  call('SREM', P .. ':typed:' .. place.type, lane)
  if call('HINCRBY', NEEDS, place.needs_text, -1) <= 0 then call('HDEL', NEEDS, place.needs_text) end
end

-- After a change of what is ready in this lane.
local function refresh_head(lane)
  local place = place_of(lane)
  if not place then return end
  local first = call('ZRANGE', P .. ':ready:' .. lane, 0, 0, 'WITHSCORES')
  local record = call('HGET', HEADS, lane)
  local member = first[1] and struct_pack('>d', tonumber(first[2])) .. first[1]
  if record and slice(record, 2) == member then return end
  if record then drop_head(lane, place, record) end
  if not member then
    if record then leave_lane_empty(lane, place) end
    return
  end
  if not record then
    call('SADD', P .. ':typed:' .. place.type, lane)
    call('HINCRBY', NEEDS, place.needs_text, 1)
  end
  -- Tasks of priority 0 go by the instant since which they wait from the beginning: it is their rank.
  write_head(lane, place, slice(lane, -3) == ',0]' and 'p' or 'u', first[2], member)
end

local function refresh_heads(lanes)
  for lane in pairs(lanes) do refresh_head(lane) end
end

-- A queue of an older format is brought to the present one. Before format 3 there were no heads, and one set of all
-- lanes ever seen.
if not stored_format[2] or tonumber(stored_format[2]) < FORMAT then
  for _, lane in ipairs(call('SMEMBERS', P .. ':lanes')) do
    for status = 0, 5 do
      local newest = call('ZRANGE', listed_key(status, lane), -1, -1, 'WITHSCORES')
      if newest[2] then call('ZADD', lanes_key(status), newest[2], lane) end
    end
    refresh_head(lane)
  end
  call('DEL', P .. ':lanes', P .. ':lanes:tag')
  call('HSET', P .. ':format', 'format', FORMAT, 'since', {since}, 'qo', '{qo}')
end
