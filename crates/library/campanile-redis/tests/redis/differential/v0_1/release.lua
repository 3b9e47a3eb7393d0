#!lua flags=allow-oom
-- release: gives up the lock of each key and hands the attempt back.
--
-- KEYS      the entries, all distinct
-- ARGV[1]   retention  how long a RETRYING entry is kept, in ms
-- ARGV[2+]  released   for each key: token 8, owner 8, and 1 if the handler has started (else 0) 1
--                      = 17 bytes
-- Returns   now, in µs, 8 bytes: every key is RETRYING by this call
--           {now, index, entry, ...}: so is every key not listed; a listed key was not changed, and
--           entry is what it holds, or 'ABSENT' or 'CORRUPT'

local retention, BEFORE_RELEASED = ARGV[1], 1

local PROCESSING, RETRYING = 1, 2
local GIVING_UP, PERMANENT_FAILURE, RELEASED = 8, 16, 32
local MAX_INTERRUPTS = 8

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
  local released = ARGV[BEFORE_RELEASED + i]
  local entry = redis.pcall('GET', key)
  local state, flags = state_of(entry)
  if state == PROCESSING and sub(entry, 9, 24) == sub(released, 1, 16) then
    local attempt, interrupts, give_ups = struct.unpack('>I2BB', entry, 3)
    local ran = byte(released, 17) == 1
    if bit.band(flags, GIVING_UP) > 0 then
      -- A give-up lock counts no attempt, and this give-up did not crash its process.
      give_ups = max(give_ups - 1, 0)
    elseif not ran or interrupts < MAX_INTERRUPTS then
      -- The limit ends a record that crashes the process on every run.
      attempt = max(attempt - 1, 0)
      if ran then interrupts = interrupts + 1 end
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
