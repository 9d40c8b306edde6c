-- For scripts that look into lanes.
local function all_lanes_unless(known_tag)
  local tag = call('GET', P .. ':lanes:tag') or ''
  if tag == known_tag then return end
  local answer = { 0, tag }
  for _, lane in ipairs(call('SMEMBERS', P .. ':lanes')) do answer[#answer + 1] = lane end
  return answer
end

-- Sorted sets read as one. Each arm holds the next few of its set; the arms are kept in order, who comes first last.
--   read(key, offset, size) answers ids and scores;  first(a, b): a's next comes before b's.
local function place(arms, arm, first)
  local at = #arms + 1
  while at > 1 and first(arms[at - 1], arm) do
    arms[at] = arms[at - 1]
    at = at - 1
  end
  arms[at] = arm
end

local function forward(arm, read, size)
  arm.at = arm.at + 2
  if not arm.few[arm.at] then
    arm.offset = arm.offset + #arm.few / 2
    arm.few, arm.at = read(arm.key, arm.offset, size), 1
  end
  arm.id, arm.score = arm.few[arm.at], tonumber(arm.few[arm.at + 1])
  return arm.id
end

local function open_arm(key, read, size)
  local arm = { key = key, few = {}, at = -1, offset = 0 }
  return forward(arm, read, size) and arm
end
