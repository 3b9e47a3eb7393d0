-- Marks a claim as completed, only if the caller still owns it.
-- KEYS[1] claim key, ARGV[1] the owner's claim value, ARGV[2] retention in ms
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('SET', KEYS[1], 'COMPLETED', 'PX', ARGV[2])
  return 1
end
return 0
