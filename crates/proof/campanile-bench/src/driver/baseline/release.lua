-- Deletes a claim, only if the caller still owns it.
-- KEYS[1] key, ARGV[1] the owner's claim. Returns whether it was deleted.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
