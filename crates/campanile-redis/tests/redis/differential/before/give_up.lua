#!lua flags=allow-oom

local retention, BEFORE_GIVEN_UP = ARGV[1], 1

local PROCESSING, FAILED = 1, 4
local PERMANENT_FAILURE = 16
local ERROR = '\1'

local sub, byte = string.sub, string.byte
local pack = struct.pack

local time = redis.call('TIME')
local now = pack('>I8', time[1] * 1000000 + time[2])

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
  local given_up = ARGV[BEFORE_GIVEN_UP + i]
  local entry = redis.pcall('GET', key)
  local state, flags = state_of(entry)
  if state == PROCESSING and sub(entry, 9, 24) == sub(given_up, 1, 16) then
    local bits = FAILED + bit.band(flags, PERMANENT_FAILURE)
    local kind, tail = ERROR, sub(given_up, 17)
    if tail == '' then
      kind, tail = sub(entry, 7, 7), sub(entry, 45)
    end
    entry = pack('>BB', 0xC1, bits) .. sub(entry, 3, 6) .. kind .. sub(entry, 8, 36) .. now .. tail
    redis.call('SET', key, entry, 'PX', retention)
  else
    reply[#reply + 1] = i
    reply[#reply + 1] = not entry and 'ABSENT' or state and entry or 'CORRUPT'
  end
end
return #reply > 1 and reply or reply[1]
