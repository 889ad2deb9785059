-- Counts a token for each lock that the command before has taken for this sidecar.
-- KEYS: a lock and its state, for each lock. ARGV: the sidecar's id, 1 if the command's success sets
-- the value, for each lock the tokens that this sidecar holds or seals between blanks, and the
-- command's arguments. Returns for each lock: whether it was granted, the last token, whether that
-- is this sidecar's, whether the application may find that its value is there though another
-- sidecar's application has set it, who has the lock, its time to live, and the number of the look.
--
-- A grant is new if the holder is another one than before. If it is the same one, a grant is new
-- where this sidecar doesn't have the last one, and the command has changed something: it has set
-- the value or moved the time to live.
local results = {}
for i = 1, #KEYS, 2 do
  local key, state = KEYS[i], KEYS[i + 1]
  local ahead = redis.call('HMGET', state, 'ahead', 'ttl', 'sidecar', 'token')
  redis.call('HDEL', state, 'ahead', 'ttl')
  local holder, values = look(key)
  local ttl, before = redis.call('PTTL', key), tonumber(ahead[2] or '-2')
  local token = ahead[4] or '0'
  local own = ahead[3] == ARGV[1]
  local held = own and string.find(ARGV[2 + (i + 1) / 2], ' ' .. token .. ' ', 1, true)
  local mine = among(values, 3 + #KEYS / 2)
  local same = holder == ahead[1]
  local changed = ARGV[2] == '1' or ttl > before or before - ttl > 50 or (ttl < 0) ~= (before < 0)
  local granted = mine and (not same or (changed and not held))
  if granted then
    redis.call('HINCRBY', state, 'token', 1)
    token = redis.call('HGET', state, 'token')
    redis.call('HSET', state, 'sidecar', ARGV[1])
    own = true
  end
  local look = redis.call('HINCRBY', state, 'looks', 1)
  for _, value in ipairs({granted and '1' or '0', token, own and '1' or '0', mine and not own and '1' or '0', holder, tostring(ttl), tostring(look)}) do
    results[#results + 1] = value
  end
end
return results
