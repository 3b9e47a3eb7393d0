#!lua flags=allow-oom
-- redrive: reopens each FAILED key for an operator.
--
-- KEYS      the entries, all distinct
-- ARGV[1]   retention  how long a RETRYING entry is kept, in ms
-- ARGV[2+]  reopened   for each key: the current token of the entry 8, and 1 to also reopen a
--                      COMPLETED or RETRYING entry (else 0) 1 = 9 bytes
-- Returns   now, in µs, 8 bytes: every key is RETRYING by this call
--           {now, index, entry, ...}: so is every key not listed; a listed key was not changed, and
--           entry is what it holds, or 'ABSENT' or 'CORRUPT'

local retention, BEFORE_REOPENED = ARGV[1], 1

local RETRYING, COMPLETED, FAILED = 2, 3, 4
-- Kinds of tail.
local NO_TAIL, ERROR, DETAILS_AND_ERROR, DETAILS_AND_REPLY, STEPS_AND_TAIL = 0, 1, 3, 4, 5
local NOTHING_COUNTED, NOBODY = string.rep('\0', 4), string.rep('\0', 8)
local NO_FINGERPRINT = NOBODY

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

-- Every grant sets an owner, so an entry without one was reopened and not acquired since.
local function is_reopened(entry)
  return sub(entry, 3, 4) == '\0\0' and sub(entry, 17, 24) == NOBODY
end

local reply = { now }
for i, key in ipairs(KEYS) do
  local reopened = ARGV[BEFORE_REOPENED + i]
  local entry = redis.pcall('GET', key)
  local state = state_of(entry)
  local is_forced = byte(reopened, 9) == 1
  local opens = state == FAILED
    or is_forced and (state == COMPLETED or state == RETRYING and not is_reopened(entry))
  if opens and sub(entry, 9, 16) == sub(reopened, 1, 8) then
    -- Drops the reply of the previous run, which must not be replayed, but keeps an error for the
    -- next run, the steps and the details.
    local steps, kind, first = split_steps(entry)
    local last, tail = details_end(entry, kind, first), sub(entry, first)
    if last and kind == DETAILS_AND_REPLY then
      kind, tail = DETAILS_AND_ERROR, sub(entry, first, last)
    elseif not last and kind ~= ERROR then
      kind, tail = NO_TAIL, ''
    end
    if steps ~= '' then kind, tail = STEPS_AND_TAIL, steps .. char(kind) .. tail end
    entry = pack('>BB', 0xC1, RETRYING) .. NOTHING_COUNTED .. char(kind) .. sub(entry, 8, 16)
      .. NOBODY .. NO_FINGERPRINT .. sub(entry, 33, 36) .. now .. tail
    redis.call('SET', key, entry, 'PX', retention)
  else
    reply[#reply + 1] = i
    reply[#reply + 1] = not entry and 'ABSENT' or state and entry or 'CORRUPT'
  end
end
return #reply > 1 and reply or reply[1]
