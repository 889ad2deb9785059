-- Counts a token above ARGV[4] for a grant, or returns '' if the lock is no longer that grant's.
-- KEYS: lock, state. ARGV: the sidecar's id, the grant's token, its holder, the token to exceed.
local known = redis.call('HMGET', KEYS[2], 'sidecar', 'token')
if known[1] ~= ARGV[1] or known[2] ~= ARGV[2] or look(KEYS[1]) ~= ARGV[3] then
  return ''
end
redis.call('HSET', KEYS[2], 'token', ARGV[4])
redis.call('HINCRBY', KEYS[2], 'token', 1)
return redis.call('HGET', KEYS[2], 'token')
