-- Functions for the scripts of one room: prepended to them.
-- KEYS: leases, room version, room holders, facts, names, reserved names, and more.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local facts, names, reserved = KEYS[4], KEYS[5], KEYS[6]

local function has_lease(node)
  local expiry = redis.call('ZSCORE', KEYS[1], node)
  return expiry and tonumber(expiry) > now
end

local function get(key, field)
  local packed = redis.call('HGET', key, field)
  return packed and cmsgpack.unpack(packed) or nil
end

local function end_reservation(name, owner)
  redis.call('ZREM', reserved, name)
  redis.call('HDEL', facts, 'k' .. name)
  if redis.call('HINCRBY', names, '#' .. owner, -1) <= 0 then redis.call('HDEL', names, '#' .. owner) end
end

-- Frees the names whose reservation has expired.
local function free_expired_names()
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', reserved, '-inf', now)) do
    end_reservation(name, (get(names, name) or {''})[1])
    redis.call('HDEL', names, name)
  end
end

-- A name that is reserved in a room without participants is kept without its manifest: the fifth of its packed facts,
-- binary, which cmsgpack cannot read.
local function drop_manifest(name)
  local kept = get(facts, 'k' .. name)
  local offer, start = kept[3], 1
  for _ = 1, 4 do start = cmsgpack.unpack_one(offer, start) end
  local size_bytes = ({[0xc4] = 1, [0xc5] = 2, [0xc6] = 4})[string.byte(offer, start + 1)]
  if not size_bytes then return end
  local size = 0
  for at = start + 2, start + 1 + size_bytes do size = size * 256 + string.byte(offer, at) end
  kept[3] = string.sub(offer, 1, start) .. '\196\0' .. string.sub(offer, start + 2 + size_bytes + size)
  redis.call('HSET', facts, 'k' .. name, cmsgpack.pack(kept))
end

-- Removes a room that no node holds. While names are reserved in it, its state stays until the last one is free.
-- Names of the owners in `beyond` are free at once.
local function close_room(room, rooms, beyond)
  free_expired_names()
  for _, name in ipairs(redis.call('ZRANGE', reserved, 0, -1)) do
    local owner = (get(names, name) or {''})[1]
    if beyond[owner] then
      end_reservation(name, owner)
      redis.call('HDEL', names, name)
    else
      pcall(drop_manifest, name)  -- facts that cannot be read stay as they are
    end
  end
  redis.call('ZREM', rooms, room)
  local last = redis.call('ZREVRANGE', reserved, 0, 0, 'WITHSCORES')
  for _, key in ipairs({KEYS[2], facts, names, reserved}) do
    if #last > 0 then redis.call('PEXPIREAT', key, last[2]) else redis.call('DEL', key) end
  end
end

