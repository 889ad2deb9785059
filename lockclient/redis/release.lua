-- Frees the resource and notifies the waiters. KEYS: lease. ARGV: holder, channel of the
-- notice. Returns 1 if the holder had the lease, otherwise 0. A user without the right to
-- publish can still release.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[2], '')
return 1
