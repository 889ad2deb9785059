-- Gives a lock back, if it is still that of a grant. KEYS: lock, state. ARGV: the sidecar's id, the
-- grant's token, its holder.
local known = redis.call('HMGET', KEYS[2], 'sidecar', 'token')
if known[1] ~= ARGV[1] or known[2] ~= ARGV[2] or look(KEYS[1]) ~= ARGV[3] then
  return 0
end
return redis.call('DEL', KEYS[1])
