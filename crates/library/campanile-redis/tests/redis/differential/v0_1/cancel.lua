#!lua flags=allow-oom
-- cancel: undoes an acquire of each key whose result is unknown.
--
-- KEYS      the entries, all distinct
-- ARGV[1]   retention  how long a RETRYING entry is kept, in ms
-- ARGV[2+]  owner      for each key: the owner in the acquire = 8 bytes
-- Returns   now, in µs, 8 bytes: every key is RETRYING by this call
--           {now, index, entry, ...}: so is every key not listed; a listed key was not changed, and
--           entry is what it holds, or 'ABSENT' or 'CORRUPT'

local retention, BEFORE_OWNER = ARGV[1], 1

local PROCESSING, RETRYING = 1, 2
local GIVING_UP, PERMANENT_FAILURE, RELEASED = 8, 16, 32

local sub, byte, max = string.sub, string.byte, math.max
local pack = struct.pack

local time = redis.call('TIME')
local now = pack('>I8', time[1] * 1000000 + time[2])

-- Returns the state of an entry and its flags, or nil for anything else.
local function state_of(value)
  if type(value) ~= 'string' or #value < 44 then return nil end
  local version, bits, _, _, _, _, _, _, token1, token2 = byte(value, 1, 10)
  local state = bits % 8
  local is_known = version == 0xC1 and bits < 64 and state >= 1 and state <= 4
  if not is_known or token1 > 0 or token2 > 31 then return nil end
  return state, bits - state
end

local reply = { now }
for i, key in ipairs(KEYS) do
  local entry = redis.pcall('GET', key)
  local state, flags = state_of(entry)
  if state == PROCESSING and sub(entry, 17, 24) == ARGV[BEFORE_OWNER + i] then
    -- A client that cancels never saw a token, so its handler did not run. A give-up lock counts no
    -- attempt, and this give-up did not crash its process.
    local attempt, interrupts, give_ups = struct.unpack('>I2BB', entry, 3)
    if bit.band(flags, GIVING_UP) > 0 then
      give_ups = max(give_ups - 1, 0)
    else
      attempt = max(attempt - 1, 0)
    end
    local bits = RETRYING + RELEASED + bit.band(flags, PERMANENT_FAILURE)
    entry = pack('>BBI2BB', 0xC1, bits, attempt, interrupts, give_ups) .. sub(entry, 7, 36) .. now
      .. sub(entry, 45)
    redis.call('SET', key, entry, 'PX', retention)
  else
    reply[#reply + 1] = i
    reply[#reply + 1] = not entry and 'ABSENT' or state and entry or 'CORRUPT'
  end
end
return #reply > 1 and reply or reply[1]
