#!lua flags=allow-oom

local retention, BEFORE_FAILED = ARGV[1], 1

local PROCESSING, RETRYING = 1, 2
local GIVING_UP, PERMANENT_FAILURE = 8, 16
local ERROR = '\1'

local sub, byte, char, max = string.sub, string.byte, string.char, math.max
local pack = struct.pack

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function state_of(value)
  if type(value) ~= 'string' or #value < 44 then return nil end
  local version, bits, _, _, _, _, _, _, token1, token2 = byte(value, 1, 10)
  local state = bits % 8
  local is_known = version == 0xC1 and bits < 64 and state >= 1 and state <= 4
  if not is_known or token1 > 0 or token2 > 31 then return nil end
  return state, bits - state
end

local reply = { pack('>I8', now) }
for i, key in ipairs(KEYS) do
  local failed = ARGV[BEFORE_FAILED + i]
  local entry = redis.pcall('GET', key)
  local state, flags = state_of(entry)
  if state == PROCESSING and sub(entry, 9, 24) == sub(failed, 1, 16) then
    local bits = RETRYING + bit.band(bit.bor(flags, byte(failed, 25)), PERMANENT_FAILURE)
    local give_ups = byte(entry, 6)
    if bit.band(flags, GIVING_UP) > 0 then give_ups = max(give_ups - 1, 0) end
    local at = pack('>I8', now + struct.unpack('>I8', failed, 17))
    local kind, tail = ERROR, sub(failed, 26)
    if tail == '' then
      kind, tail = sub(entry, 7, 7), sub(entry, 45)
    end
    entry = pack('>BB', 0xC1, bits) .. sub(entry, 3, 5) .. char(give_ups) .. kind
      .. sub(entry, 8, 36) .. at .. tail
    redis.call('SET', key, entry, 'PX', retention)
  else
    reply[#reply + 1] = i
    reply[#reply + 1] = not entry and 'ABSENT' or state and entry or 'CORRUPT'
  end
end
return #reply > 1 and reply or reply[1]
