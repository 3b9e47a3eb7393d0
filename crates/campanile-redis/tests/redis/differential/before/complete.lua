
local retention, BEFORE_DONE = ARGV[1], 1

local PROCESSING = 1
local COMPLETED = '\193\3' -- the version, and the state without flags

local sub, byte = string.sub, string.byte
local pack = struct.pack

local time = redis.call('TIME')
local now = pack('>I8', time[1] * 1000000 + time[2])
local created = pack('>I4', time[1])

local function state_of(value)
  if type(value) ~= 'string' or #value < 44 then return nil end
  local version, bits, _, _, _, _, _, _, token1, token2 = byte(value, 1, 10)
  local state = bits % 8
  local is_known = version == 0xC1 and bits < 64 and state >= 1 and state <= 4
  if not is_known or token1 > 0 or token2 > 31 then return nil end
  return state, bits - state
end

local reply = { now }
local values = redis.call('MGET', unpack(KEYS))
for i, key in ipairs(KEYS) do
  local done = ARGV[BEFORE_DONE + i]
  local entry = values[i] or redis.pcall('GET', key)
  local state = state_of(entry)
  if state == PROCESSING and sub(entry, 9, 24) == sub(done, 7, 22) then
    entry = COMPLETED .. sub(entry, 3, 6) .. sub(done, 5, 5) .. sub(entry, 8, 36) .. now
      .. sub(done, 31)
    redis.call('SET', key, entry, 'PX', retention)
  elseif not entry then
    entry = COMPLETED .. sub(done, 1, 30) .. created .. now .. sub(done, 31)
    redis.call('SET', key, entry, 'PX', retention)
  else
    reply[#reply + 1] = i
    reply[#reply + 1] = state and entry or 'CORRUPT'
  end
end
return #reply > 1 and reply or reply[1]
