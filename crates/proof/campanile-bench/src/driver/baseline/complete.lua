-- Marks a key as completed, unless another owner has claimed it. A claim may have expired.
-- KEYS[1] key, ARGV[1] the owner's claim, ARGV[2] retention in ms. Returns whether it is completed.
local claim = redis.call('GET', KEYS[1])
if claim and claim ~= ARGV[1] then
  return claim == 'COMPLETED' and 1 or 0
end
redis.call('SET', KEYS[1], 'COMPLETED', 'PX', ARGV[2])
return 1
