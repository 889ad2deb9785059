-- Tries what the other scripts need, and returns what is denied: '' if nothing is.
-- KEYS: a lock and its state, for each lock. ARGV: 1 if locks are given back, too.
for i = 1, #KEYS, 2 do
  local key, state = KEYS[i], KEYS[i + 1]
  for _, command in ipairs({
    {'TYPE', key}, {'GET', key}, {'HLEN', key}, {'HGETALL', key}, {'PTTL', key},
    {'HSET', state, 'probe', '1'}, {'HINCRBY', state, 'probe', 1}, {'HGET', state, 'probe'}, {'HMGET', state, 'probe'},
    {'HDEL', state, 'probe'},
  }) do
    local answer = redis.pcall(unpack(command))
    if type(answer) == 'table' and answer.err and not string.find(answer.err, 'WRONGTYPE', 1, true) then
      return command[1] .. ' ' .. command[2] .. ': ' .. answer.err
    end
  end
  if ARGV[1] == '1' and redis.call('EXISTS', key) == 0 then
    local answer = redis.pcall('DEL', key)
    if type(answer) == 'table' and answer.err then
      return 'DEL ' .. key .. ': ' .. answer.err
    end
  end
end
return ''
