-- Gives a lock back of which no token was counted, if its value is among ARGV. KEYS: lock.
local _, values = look(KEYS[1])
if not among(values, 1) then
  return 0
end
return redis.call('DEL', KEYS[1])
