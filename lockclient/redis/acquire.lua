-- Acquires the lease and counts a token, or returns the present holder.
-- KEYS: lease, token counter. ARGV: holder, ttl in milliseconds.
-- Returns {token} or {false, other holder, milliseconds left}.
-- The script reads the counter back as text: a Lua number would lose digits beyond
-- 2^53. It writes the lease last, so that it leaves nothing behind if the counter
-- cannot be increased.
local other = redis.call('GET', KEYS[1])
if other and other ~= ARGV[1] then
  return {false, other, redis.call('PTTL', KEYS[1])}
end
local counted = redis.pcall('INCR', KEYS[2])
if type(counted) == 'table' then
  return redis.error_reply('WFCOUNTER ' .. counted.err)
end
if counted < 1 then
  return redis.error_reply('WFCOUNTER ERR value is negative')
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {redis.call('GET', KEYS[2])}
