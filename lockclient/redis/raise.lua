-- Raises the counter to at least ARGV[1]. KEYS: token counter. The script compares both
-- as decimal texts: Lua numbers would lose digits beyond 2^53.
local counter = redis.call('GET', KEYS[1])
if counter and not string.match(counter, '^%-?%d+$') then
  return redis.error_reply('WFCOUNTER ERR value is not an integer or out of range')
end
if not counter or string.sub(counter, 1, 1) == '-' or #counter < #ARGV[1]
    or (#counter == #ARGV[1] and counter < ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1])
end
return 1
