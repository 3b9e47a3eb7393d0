
local ttl, retention, highest_floor = tonumber(ARGV[1]), ARGV[3], tonumber(ARGV[4])
local BEFORE_ASKED = 4

local PROCESSING, RETRYING = 1, 2
local TOKENS_END = 2 ^ 53

local pcall, sub = redis.pcall, string.sub
local pack, unpack, max = struct.pack, struct.unpack, math.max

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local expiry = pack('>I8', now + ttl)

local function pack_head(token)
  return pack('>BBI2I4I8', 0xC1, PROCESSING, 1, 0, token)
end
local trailer = pack('>I4', time[1]) .. expiry

local common_head = highest_floor < now and pack_head(now)

local function pack_head_above_floor(asked)
  local token = max(now, unpack('>I8', asked, 17) + 1)
  return token < TOKENS_END and pack_head(token)
end

local others, found_there = {}, {}
for i, key in ipairs(KEYS) do
  local asked = ARGV[BEFORE_ASKED + i]
  local first = common_head or pack_head_above_floor(asked)
  local found = not first
    or pcall('SET', key, first .. sub(asked, 1, 16) .. trailer, 'NX', 'GET', 'PX', retention)
  if found then
    others[#others + 1] = i
    found_there[i] = found
  end
end

if #others == 0 then return pack('>I8', now) end

local max_attempts = tonumber(ARGV[2])
local GIVING_UP, PERMANENT_FAILURE = 8, 16
local MAX_TTL, MAX_BACKOFF = 3600e6, 86400e6
local NO_FINGERPRINT = string.rep('\0', 8)

local function is_error(reply, code)
  return type(reply) == 'table' and sub(reply.err, 1, #code) == code
end

local function acquire_existing(key, asked, entry, is_full)
  if type(entry) == 'table' or #entry < 44 then return 'CORRUPT' end
  local version, bits, attempt, interrupts, give_ups = unpack('>BBI2BB', entry)
  local token, at = unpack('>I8', entry, 9), unpack('>I8', entry, 37)
  local state = bits % 8
  if version ~= 0xC1 or bits > 63 or state < 1 or state > 4 or token >= TOKENS_END then
    return 'CORRUPT'
  end

  local owner, fingerprint, known = sub(asked, 1, 8), sub(asked, 9, 16), sub(entry, 25, 32)
  local is_tried = state ~= RETRYING or attempt > 0 or interrupts > 0
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
    local latest = now + (state == PROCESSING and MAX_TTL or MAX_BACKOFF)
    if at > latest then
      entry = sub(entry, 1, 36) .. pack('>I8', latest) .. sub(entry, 45)
      if not is_full then redis.call('SET', key, entry, 'PX', retention) end
    end
    return entry
  end

  token = max(token + 1, now, unpack('>I8', asked, 17) + 1)
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
  entry = pack('>BBI2BB', 0xC1, bits, attempt, interrupts, give_ups) .. sub(entry, 7, 8)
    .. pack('>I8', token) .. owner .. fingerprint .. sub(entry, 33, 36) .. expiry .. sub(entry, 45)
  redis.call('SET', key, entry, 'PX', retention)
  return entry
end

local reply = { pack('>I8', now) }
for _, i in ipairs(others) do
  local key, found = KEYS[i], found_there[i]
  local refusal = found == true and 'CORRUPT' or is_error(found, 'OOM') and 'OOM'
  if refusal then found = pcall('GET', key) end
  if type(found) == 'table' and not is_error(found, 'WRONGTYPE') then return found end
  reply[#reply + 1] = i
  reply[#reply + 1] = found
    and acquire_existing(key, ARGV[BEFORE_ASKED + i], found, refusal == 'OOM')
    or refusal
end
return reply
