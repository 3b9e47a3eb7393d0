#!lua flags=allow-oom
-- give_up: makes each key permanently FAILED.
--
-- KEYS      the entries, all distinct
-- ARGV[1]   retention  how long a FAILED entry is kept, in ms
-- ARGV[2+]  given_up   for each key: token 8, owner 8 = 16 bytes, and the reason (empty: the last
--                      error is kept)
-- Returns   now, in µs, 8 bytes: every key is FAILED by this call
--           {now, index, entry, ...}: so is every key not listed; a listed key was not changed, and
--           entry is what it holds, or 'ABSENT' or 'CORRUPT'

local retention, BEFORE_GIVEN_UP = ARGV[1], 1

local PROCESSING, FAILED = 1, 4
local PERMANENT_FAILURE = 16
local ERROR, DETAILS_AND_ERROR, DETAILS_AND_REPLY, STEPS_AND_TAIL = 1, 3, 4, 5 -- kinds of tail

local sub, byte, char = string.sub, string.byte, string.char
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

-- Returns the steps of an entry as they are stored ('' if it has none that can be read), the kind of the
-- tail behind them, and where that tail begins.
local function split_steps(entry)
  local kind = byte(entry, 7)
  if kind ~= STEPS_AND_TAIL or #entry < 49 then return '', kind, 45 end
  local last = 48 + struct.unpack('>I4', entry, 45)
  if last == 48 or last >= #entry then return '', kind, 45 end
  return sub(entry, 45, last), byte(entry, last + 1), last + 2
end

-- Returns where the details in a tail end, or nil if it has none that can be read.
local function details_end(entry, kind, first)
  local is_before = kind == DETAILS_AND_ERROR or kind == DETAILS_AND_REPLY
  if not is_before or #entry <= first then return nil end
  local last = first + 1 + struct.unpack('>I2', entry, first)
  return last <= #entry and last or nil
end

local reply = { now }
for i, key in ipairs(KEYS) do
  local given_up = ARGV[BEFORE_GIVEN_UP + i]
  local entry = redis.pcall('GET', key)
  local state, flags = state_of(entry)
  if state == PROCESSING and sub(entry, 9, 24) == sub(given_up, 1, 16) then
    local bits = FAILED + bit.band(flags, PERMANENT_FAILURE)
    local kind, tail = byte(entry, 7), sub(entry, 45)
    local text = sub(given_up, 17)
    if text ~= '' then
      local steps, before, first = split_steps(entry)
      local last = details_end(entry, before, first)
      kind = last and DETAILS_AND_ERROR or ERROR
      tail = last and sub(entry, first, last) .. text or text
      if steps ~= '' then kind, tail = STEPS_AND_TAIL, steps .. char(kind) .. tail end
    end
    entry = pack('>BB', 0xC1, bits) .. sub(entry, 3, 6) .. char(kind) .. sub(entry, 8, 36) .. now
      .. tail
    redis.call('SET', key, entry, 'PX', retention)
  else
    reply[#reply + 1] = i
    reply[#reply + 1] = not entry and 'ABSENT' or state and entry or 'CORRUPT'
  end
end
return #reply > 1 and reply or reply[1]
