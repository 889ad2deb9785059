-- Returns who has the lock: a text that is another one for each holder, '' if nobody has it, and
-- the values of which the holder knows one. A field like uuid:thread with a count is Redisson's,
-- and a reentrant take changes the count alone.
local function look(key)
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then
    return '', {}
  end
  if kind == 'string' then
    local value = redis.call('GET', key)
    return '=' .. value, {value}
  end
  if kind ~= 'hash' or redis.call('HLEN', key) > 16 then
    return '?' .. kind, {}
  end
  local all, parts, values = redis.call('HGETALL', key), {}, {}
  for i = 1, #all, 2 do
    if string.find(all[i], ':', 1, true) and string.match(all[i + 1], '^%d+$') then
      parts[#parts + 1] = all[i]
      values[#values + 1] = all[i]
    else
      parts[#parts + 1] = all[i] .. '=' .. all[i + 1]
      values[#values + 1] = all[i + 1]
    end
  end
  table.sort(parts)
  return '#' .. table.concat(parts, '\n'), values
end
local function among(values, from)
  for i = from, #ARGV do
    for _, value in ipairs(values) do
      if ARGV[i] == value then
        return true
      end
    end
  end
  return false
end
