-- ARGV = nonce, name, data, expected ('new', 'any' or a version). Answers '1', or '0' if another version is there.
-- The nonce becomes the version: it stays new after a note was dropped, and after a failover that lost writes.
local nonce, name, data, expected = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local before = receipt(nonce)
if before then return before end

local place = note_place(name)
if place == P .. ':audit' and expected == 'new' then -- without reading: roles that act may add records, and nothing else
  local added = call('HSETNX', place, name, nonce .. ' ' .. data)
  sign(nonce, tostring(added))
  return tostring(added)
end
local stored = call('HGET', place, name)
local version = stored and string.match(stored, '^%S+') or 'new'
if expected ~= 'any' and expected ~= version then return '0' end
call('HSET', place, name, nonce .. ' ' .. data)
sign(nonce, '1')
return '1'
