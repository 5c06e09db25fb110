-- What scripts about one room share: it stands before them.
-- KEYS: leases, room version, room nodes, facts, names, kept names, and more.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local facts, names, kept = KEYS[4], KEYS[5], KEYS[6]

local function lives(node)
  local ends = redis.call('ZSCORE', KEYS[1], node)
  return ends and tonumber(ends) > now
end

local function get(key, field)
  local packed = redis.call('HGET', key, field)
  return packed and cmsgpack.unpack(packed) or nil
end

local function forget_kept(name, owner)
  redis.call('ZREM', kept, name)
  redis.call('HDEL', facts, 'k' .. name)
  if redis.call('HINCRBY', names, '#' .. owner, -1) <= 0 then redis.call('HDEL', names, '#' .. owner) end
end

-- Frees the names that were kept for long enough.
local function free_ended()
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', kept, '-inf', now)) do
    forget_kept(name, (get(names, name) or {''})[1])
    redis.call('HDEL', names, name)
  end
end

