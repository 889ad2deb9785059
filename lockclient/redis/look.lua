-- Returns the holder of the lease, and how long it lasts. KEYS: lease.
-- Returns {holder, milliseconds left}, or {} if the resource is free.
local holder = redis.call('GET', KEYS[1])
if not holder then
  return {}
end
return {holder, redis.call('PTTL', KEYS[1])}
