#!lua flags=allow-oom
-- expire: sets when each entry expires, for an operator.
--
-- KEYS      the entries, all distinct
-- ARGV[1]   after  when the entries expire, in ms from now; 0 deletes them
-- ARGV[2]   young  the minimum time from an entry's last grant until it expires, in µs
-- ARGV[3+]  read   for each key, the entry as it was read: state 1, token 8, owner 8, at 8 = 25 bytes
-- Returns   a letter for each key: D the entry expires as asked; nothing was changed, because
--           C it is not the one that was read, K it is locked or was granted too recently

local after, young, BEFORE_READ = ARGV[1], tonumber(ARGV[2]), 2

local PROCESSING = 1

local sub, byte, unpack = string.sub, string.byte, struct.unpack

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- Returns the state of an entry and its flags, or nil for anything else.
local function state_of(value)
  if type(value) ~= 'string' or #value < 44 then return nil end
  local version, bits, _, _, _, _, _, _, token1, token2 = byte(value, 1, 10)
  local state = bits % 8
  local is_known = version == 0xC1 and bits < 64 and state >= 1 and state <= 4
  if not is_known or token1 > 0 or token2 > 31 then return nil end
  return state, bits - state
end

local outcomes = {}
for i, key in ipairs(KEYS) do
  local read = ARGV[BEFORE_READ + i]
  local entry = redis.pcall('GET', key)
  local state = state_of(entry)
  if state ~= byte(read) or sub(entry, 9, 24) .. sub(entry, 37, 44) ~= sub(read, 2) then
    outcomes[i] = 'C'
  elseif state == PROCESSING and now < unpack('>I8', entry, 37)
    or now + after * 1000 < unpack('>I8', entry, 9) + young then
    outcomes[i] = 'K'
  else
    redis.call('PEXPIRE', key, after)
    outcomes[i] = 'D'
  end
end
return table.concat(outcomes)
