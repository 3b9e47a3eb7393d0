#!lua
-- record_step: records the result of a step of each key's handler. The first result of a name is kept.
--
-- KEYS      the entries, all distinct
-- ARGV[1]   retention  how long a PROCESSING entry is kept, in ms
-- ARGV[2+]  done       for each key: token 8, owner 8, length of the name 1 = 17 bytes, then the name,
--                      the length of the result 4, and the result
-- Returns   now, in µs, 8 bytes: every key has a result of its step
--           {now, index, entry, ...}: so is every key not listed; a listed key was not changed, and
--           entry is what it holds, or 'ABSENT' or 'CORRUPT'. If the entry is PROCESSING by this grant,
--           the name or all steps together would exceed their limit, or the steps cannot be read
--
-- Without allow-oom: a Redis that is out of memory refuses the step, which is an error of the handler.

local retention, BEFORE_DONE = ARGV[1], 1

local PROCESSING = 1
local STEPS_AND_TAIL = 5 -- a kind of tail
local MAX_NAME, MAX_STEPS = 64, 64 * 1024

local sub, byte, char = string.sub, string.byte, string.char
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

-- Returns whether these stored steps have one of this name, or nil if they have not and cannot all be read.
local function has_step(steps, name)
  local at = 5
  while at <= #steps do
    local result_len_at = at + 1 + byte(steps, at)
    if result_len_at + 3 > #steps then return nil end
    local last = result_len_at + 3 + struct.unpack('>I4', steps, result_len_at)
    if last > #steps then return nil end
    if sub(steps, at + 1, result_len_at - 1) == name then return true end
    at = last + 1
  end
  return false
end

local reply = { pack('>I8', now) }
for i, key in ipairs(KEYS) do
  local done = ARGV[BEFORE_DONE + i]
  local entry = redis.pcall('GET', key)
  local state = state_of(entry)
  local is_recorded = false
  if state == PROCESSING and sub(entry, 9, 24) == sub(done, 1, 16) then
    local steps, kind, first = split_steps(entry)
    local name_len = byte(done, 17)
    is_recorded = has_step(steps, sub(done, 18, 17 + name_len))
    local all = sub(steps, 5) .. sub(done, 17)
    if is_recorded == false and name_len <= MAX_NAME and #all <= MAX_STEPS then
      entry = sub(entry, 1, 6) .. char(STEPS_AND_TAIL) .. sub(entry, 8, 44) .. pack('>I4', #all)
        .. all .. char(kind) .. sub(entry, first)
      redis.call('SET', key, entry, 'PX', retention)
      is_recorded = true
    end
  end
  if not is_recorded then
    reply[#reply + 1] = i
    reply[#reply + 1] = not entry and 'ABSENT' or state and entry or 'CORRUPT'
  end
end
return #reply > 1 and reply or reply[1]
