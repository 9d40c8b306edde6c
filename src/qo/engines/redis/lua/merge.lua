-- For scripts that read several sorted sets as one: a heap of arms, each with the next few members of one set.
--   first(a, b): a's next comes before b's.
local function push(arms, arm, first)
  local at = #arms + 1
  while at > 1 do
    local above = math.floor(at / 2)
    if not first(arm, arms[above]) then break end
    arms[at] = arms[above]
    at = above
  end
  arms[at] = arm
end

local function pop(arms, first)
  local top, last = arms[1], table.remove(arms)
  if #arms == 0 then return top end
  local at = 1
  while true do
    local below = 2 * at
    if below > #arms then break end
    if below < #arms and first(arms[below + 1], arms[below]) then below = below + 1 end
    if not first(arms[below], last) then break end
    arms[at] = arms[below]
    at = below
  end
  arms[at] = last
  return top
end

-- read(key, offset, size) answers ids and scores.
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
