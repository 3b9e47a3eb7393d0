-- acquire: acquires the lock of each key and counts an attempt.
--
-- KEYS      the entries, all distinct
-- ARGV[1]   ttl            the time to live of a lock, in µs
-- ARGV[2]   max_attempts   from this many attempts on, a grant is a give-up lock; 0: unlimited
-- ARGV[3]   retention      how long a PROCESSING or RETRYING entry is kept, in ms
-- ARGV[4]   floor          granted tokens exceed it
-- ARGV[5+]  asked          for each key: owner 8, fingerprint 8 = 16 bytes. Then for each key,
--                          in arguments of their own: the details of the grant, after their length 2
--                          (nothing: those of the entry are kept)
-- Returns   now, in µs, 8 bytes: every key was absent and is granted, with attempt 1 and the token
--           max(now, floor + 1)
--           {now, index, entry, ...}: so is every key not listed; for a listed key, entry is its
--           entry after the call, 'CORRUPT' (not an entry, or no token is left) or 'OOM' (a write
--           is needed, and memory is full)
--
-- No shebang: with one, a Redis that is out of memory would also refuse calls that need no write.

local ttl, retention, floor = tonumber(ARGV[1]), ARGV[3], tonumber(ARGV[4])
local BEFORE_DETAILS, BEFORE_ASKED = 4 + #KEYS, 4

local TOKENS_END = 2 ^ 53
local FIRST_GRANT = '\193\1\0\1\0\0' -- the version, PROCESSING, attempt 1, nothing else counted

local pcall, sub, byte = redis.pcall, string.sub, string.byte
local pack, unpack, max = struct.pack, struct.unpack, math.max

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local expiry = pack('>I8', now + ttl)

-- The bytes of a first grant before its owner (head), without and with details, and after its
-- fingerprint (trailer). All of them are granted the same token.
local new_token = max(now, floor + 1)
local head_end = pack('>BI8', 0, new_token) -- the spare byte, and the token
local head, head_of_details = FIRST_GRANT .. '\0' .. head_end, FIRST_GRANT .. '\3' .. head_end
local trailer = pack('>I4', time[1]) .. expiry

-- The keys that this loop did not grant, and what each of them holds; true if no token is left.
local others, found_there = {}, {}
for i, key in ipairs(KEYS) do
  local asked, details = ARGV[BEFORE_ASKED + i], ARGV[BEFORE_DETAILS + i]
  local found = new_token >= TOKENS_END
    or pcall('SET', key,
      (details == '' and head or head_of_details) .. asked .. trailer .. details,
      'NX', 'GET', 'PX', retention)
  if found then
    others[#others + 1] = i
    found_there[i] = found
  end
end

-- The usual case. Creating the functions below on every call would take as long as a write.
if #others == 0 then return pack('>I8', now) end

local max_attempts = tonumber(ARGV[2])
local PROCESSING, RETRYING = 1, 2
local GIVING_UP, PERMANENT_FAILURE = 8, 16
-- Kinds of tail.
local NO_TAIL, REPLY, DETAILS_AND_ERROR, DETAILS_AND_REPLY, STEPS_AND_TAIL = 0, 2, 3, 4, 5
local MAX_TTL, MAX_BACKOFF = 3600e6, 86400e6
local NO_FINGERPRINT = string.rep('\0', 8)
local char = string.char

local function is_error(reply, code)
  return type(reply) == 'table' and sub(reply.err, 1, #code) == code
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

-- Returns the kind of tail and the tail of an entry with these details. A tail of an unknown kind is
-- kept as it is.
local function replace_details(entry, details)
  local steps, kind, first = split_steps(entry)
  if kind == NO_TAIL then
    first = #entry + 1
  elseif kind > REPLY then
    local last = details_end(entry, kind, first)
    if not last then return sub(entry, 7, 7), sub(entry, 45) end
    first = last + 1
  end
  local has_reply = kind == REPLY or kind == DETAILS_AND_REPLY
  local replaced = char(has_reply and DETAILS_AND_REPLY or DETAILS_AND_ERROR)
  local tail = details .. sub(entry, first)
  if steps == '' then return replaced, tail end
  return char(STEPS_AND_TAIL), steps .. replaced .. tail
end

-- Acquires a key that exists. Returns its entry after the call, or a code.
local function acquire_existing(key, asked, details, entry, is_full)
  if type(entry) == 'table' or #entry < 44 then return 'CORRUPT' end
  local version, bits, attempt, interrupts, give_ups = unpack('>BBI2BB', entry)
  local token, at = unpack('>I8', entry, 9), unpack('>I8', entry, 37)
  local state = bits % 8
  if version ~= 0xC1 or bits > 63 or state < 1 or state > 4 or token >= TOKENS_END then
    return 'CORRUPT'
  end

  local owner, fingerprint, known = sub(asked, 1, 8), sub(asked, 9, 16), sub(entry, 25, 32)
  local is_tried = state ~= RETRYING or attempt > 0 or interrupts > 0
    or byte(entry, 7) == STEPS_AND_TAIL
  local is_compared = fingerprint ~= NO_FINGERPRINT and known ~= NO_FINGERPRINT
  if is_tried and is_compared and fingerprint ~= known then return entry end
  if state > RETRYING then return entry end

  if sub(entry, 17, 24) == owner then
    if state == RETRYING or at >= now + ttl then return entry end
    if is_full then return 'OOM' end
    entry = sub(entry, 1, 36) .. expiry .. sub(entry, 45)
    redis.call('SET', key, entry, 'PX', retention)
    return entry
  end

  if at > now then
    -- No client asks for a later time than this, so a clock went back. The earlier time applies
    -- even if there is no memory to write it.
    local latest = now + (state == PROCESSING and MAX_TTL or MAX_BACKOFF)
    if at > latest then
      entry = sub(entry, 1, 36) .. pack('>I8', latest) .. sub(entry, 45)
      if not is_full then redis.call('SET', key, entry, 'PX', retention) end
    end
    return entry
  end

  token = max(token + 1, new_token)
  if token >= TOKENS_END then return 'CORRUPT' end
  if is_full then return 'OOM' end
  local permanent_failure = bit.band(bits, PERMANENT_FAILURE)
  bits = PROCESSING + permanent_failure
  if permanent_failure > 0 or (max_attempts > 0 and attempt >= max_attempts) then
    bits = bits + GIVING_UP
    give_ups = math.min(give_ups + 1, 255)
  else
    attempt = math.min(attempt + 1, 65535)
  end
  if fingerprint == NO_FINGERPRINT then fingerprint = known end
  local kind, tail = sub(entry, 7, 7), sub(entry, 45)
  if details ~= '' then kind, tail = replace_details(entry, details) end
  entry = pack('>BBI2BB', 0xC1, bits, attempt, interrupts, give_ups) .. kind .. sub(entry, 8, 8)
    .. pack('>I8', token) .. owner .. fingerprint .. sub(entry, 33, 36) .. expiry .. tail
  redis.call('SET', key, entry, 'PX', retention)
  return entry
end

local reply = { pack('>I8', now) }
for _, i in ipairs(others) do
  local key, found = KEYS[i], found_there[i]
  local asked, details = ARGV[BEFORE_ASKED + i], ARGV[BEFORE_DETAILS + i]
  local refusal = found == true and 'CORRUPT' or is_error(found, 'OOM') and 'OOM'
  if refusal then found = pcall('GET', key) end
  if type(found) == 'table' and not is_error(found, 'WRONGTYPE') then return found end
  reply[#reply + 1] = i
  reply[#reply + 1] = found
    and acquire_existing(key, asked, details, found, refusal == 'OOM')
    or refusal
end
return reply
