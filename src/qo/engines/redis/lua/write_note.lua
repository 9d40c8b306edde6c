-- ARGV = nonce, name, data, expected ('new', 'any' or a version)
-- Returns '1', or '0' if the note has another version.
-- The nonce becomes the version. A counter would repeat versions after a note was dropped, or after a failover lost writes.
local nonce, name, data, expected = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local receipt = read_receipt(nonce)
if receipt then return receipt end

local key = notes_key(name)
if key == PREFIX .. ':audit' and expected == 'new' then -- reads nothing, because most roles may only add audit records
  local added = tostring(call('HSETNX', key, name, nonce .. ' ' .. data))
  write_receipt(nonce, added)
  return added
end
local stored = call('HGET', key, name)
local version = stored and string.match(stored, '^%S+') or 'new'
if expected ~= 'any' and expected ~= version then return '0' end
call('HSET', key, name, nonce .. ' ' .. data)
write_receipt(nonce, '1')
return '1'
