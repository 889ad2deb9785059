-- Tells who has the lease, and for how long. KEYS: lease.
-- Returns {holder, milliseconds left}, or {} if nobody has it.
local holder = redis.call('GET', KEYS[1])
if not holder then
  return {}
end
return {holder, redis.call('PTTL', KEYS[1])}
