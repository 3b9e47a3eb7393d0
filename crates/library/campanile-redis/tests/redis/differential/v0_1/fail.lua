#!lua flags=allow-oom
-- fail: records the failed attempt of each key's grant.
--
-- KEYS      the entries, all distinct
-- ARGV[1]   retention  how long a RETRYING entry is kept, in ms
-- ARGV[2+]  failed     for each key: token 8, owner 8, delay until the next attempt in µs 8, and 16
--                      if it was the last attempt (else 0) 1 = 25 bytes, and the error (empty: the
--                      previous error is kept). The steps and the details of the grant are always
--                      kept
-- Returns   now, in µs, 8 bytes: every key is RETRYING by this call
--           {now, index, entry, ...}: so is every key not listed; a listed key was not changed, and
--           entry is what it holds, or 'ABSENT' or 'CORRUPT'

local retention, BEFORE_FAILED = ARGV[1], 1

local PROCESSING, RETRYING = 1, 2
local GIVING_UP, PERMANENT_FAILURE = 8, 16
local ERROR, DETAILS_AND_ERROR, DETAILS_AND_REPLY, STEPS_AND_TAIL = 1, 3, 4, 5 -- kinds of tail

local sub, byte, char, max = string.sub, string.byte, string.char, math.max
local pack = struct.pack

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

local reply = { pack('>I8', now) }
for i, key in ipairs(KEYS) do
  local failed = ARGV[BEFORE_FAILED + i]
  local entry = redis.pcall('GET', key)
  local state, flags = state_of(entry)
  if state == PROCESSING and sub(entry, 9, 24) == sub(failed, 1, 16) then
    local bits = RETRYING + bit.band(bit.bor(flags, byte(failed, 25)), PERMANENT_FAILURE)
    -- A give-up that is given up in order did not crash its process, so it is not counted.
    local give_ups = byte(entry, 6)
    if bit.band(flags, GIVING_UP) > 0 then give_ups = max(give_ups - 1, 0) end
    local at = pack('>I8', now + struct.unpack('>I8', failed, 17))
    local kind, tail = byte(entry, 7), sub(entry, 45)
    local text = sub(failed, 26)
    if text ~= '' then
      local steps, before, first = split_steps(entry)
      local last = details_end(entry, before, first)
      kind = last and DETAILS_AND_ERROR or ERROR
      tail = last and sub(entry, first, last) .. text or text
      if steps ~= '' then kind, tail = STEPS_AND_TAIL, steps .. char(kind) .. tail end
    end
    entry = pack('>BB', 0xC1, bits) .. sub(entry, 3, 5) .. char(give_ups, kind)
      .. sub(entry, 8, 36) .. at .. tail
    redis.call('SET', key, entry, 'PX', retention)
  else
    reply[#reply + 1] = i
    reply[#reply + 1] = not entry and 'ABSENT' or state and entry or 'CORRUPT'
  end
end
return #reply > 1 and reply or reply[1]
