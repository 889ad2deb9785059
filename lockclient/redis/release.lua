-- Frees the resource for others. KEYS: lease. ARGV: holder, channel to tell
-- waiters on. Returns 1 if the holder had the lease, else 0. A user who may not
-- publish can release all the same.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[2], '')
return 1
