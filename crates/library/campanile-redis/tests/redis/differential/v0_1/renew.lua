#!lua flags=allow-oom
-- renew: extends the lock of each key.
--
-- KEYS      the entries, all distinct
-- ARGV[1]   ttl        the time to live of the lock from now on, in µs
-- ARGV[2]   retention  how long a PROCESSING entry is kept, in ms
-- ARGV[3+]  grant      for each key: token 8, owner 8 = 16 bytes
-- Returns   now, in µs, 8 bytes: the lock of every key is extended
--           {now, index, entry, ...}: so is that of every key not listed; a listed key was not
--           changed, and entry is what it holds, or 'ABSENT' or 'CORRUPT'

local ttl, retention, BEFORE_GRANT = tonumber(ARGV[1]), ARGV[2], 2

local PROCESSING = 1

local sub, byte = string.sub, string.byte
local pack = struct.pack

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local expiry = pack('>I8', now + ttl)

-- Returns the state of an entry and its flags, or nil for anything else.
local function state_of(value)
  if type(value) ~= 'string' or #value < 44 then return nil end
  local version, bits, _, _, _, _, _, _, token1, token2 = byte(value, 1, 10)
  local state = bits % 8
  local is_known = version == 0xC1 and bits < 64 and state >= 1 and state <= 4
  if not is_known or token1 > 0 or token2 > 31 then return nil end
  return state, bits - state
end

local reply = { pack('>I8', now) }
local values = redis.call('MGET', unpack(KEYS))
for i, key in ipairs(KEYS) do
  -- MGET returns nil for a value of another type; GET returns an error.
  local entry = values[i] or redis.pcall('GET', key)
  local state = state_of(entry)
  if state == PROCESSING and sub(entry, 9, 24) == ARGV[BEFORE_GRANT + i] then
    -- A late copy of an earlier renewal must not shorten the lock.
    if now + ttl > struct.unpack('>I8', entry, 37) then
      redis.call('SET', key, sub(entry, 1, 36) .. expiry .. sub(entry, 45), 'PX', retention)
    end
  else
    reply[#reply + 1] = i
    reply[#reply + 1] = not entry and 'ABSENT' or state and entry or 'CORRUPT'
  end
end
return #reply > 1 and reply or reply[1]
