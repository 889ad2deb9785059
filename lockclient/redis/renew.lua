-- Restarts the ttl for the holder. KEYS: lease. ARGV: holder, ttl in milliseconds.
-- Returns 1 if the holder has the lease, otherwise 0.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
