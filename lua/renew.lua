#!lua flags=allow-oom
-- renew: keep the lock of each key.
--
-- KEYS      the entries, all distinct
-- ARGV[1]   ttl        how long the lock lives from now on, in µs
-- ARGV[2]   retention  how long PROCESSING is kept, in ms
-- ARGV[3+]  grant      for each key: token 8, owner 8 = 16 bytes
-- Returns   now, in µs, 8 bytes: every lock lives on
--           {now, index, entry, ...}: so do all but these, whose entry stands like that, or is
--           'ABSENT' or 'CORRUPT'

local ttl, retention, BEFORE_GRANT = tonumber(ARGV[1]), ARGV[2], 2

local PROCESSING = 1

local sub, byte = string.sub, string.byte
local pack = struct.pack

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local expiry = pack('>I8', now + ttl)

-- The state of an entry, and its flags; nil of what is none.
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
  -- MGET shows another type as absent; GET tells.
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
