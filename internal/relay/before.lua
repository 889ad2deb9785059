-- Notes who has each lock ahead of a command, for the script behind it in the same transaction.
-- KEYS: a lock and its state, for each lock.
for i = 1, #KEYS, 2 do
  redis.call('HSET', KEYS[i + 1], 'ahead', look(KEYS[i]), 'ttl', redis.call('PTTL', KEYS[i]))
end
return 1
