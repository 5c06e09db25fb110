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
  local fact = get(facts, 'k' .. name)
  local offer, start = fact[3], 1
  for _ = 1, 4 do start = cmsgpack.unpack_one(offer, start) end
  local size_bytes = ({[0xc4] = 1, [0xc5] = 2, [0xc6] = 4})[string.byte(offer, start + 1)]
  if not size_bytes then return end
  local size = 0
  for at = start + 2, start + 1 + size_bytes do size = size * 256 + string.byte(offer, at) end
  fact[3] = string.sub(offer, 1, start) .. '\196\0' .. string.sub(offer, start + 2 + size_bytes + size)
  redis.call('HSET', facts, 'k' .. name, cmsgpack.pack(fact))
end

-- The seal of a room is stored with its facts as 's': its version, and the number of its facts and names. By it a
-- change by another program is found, such as a key that was deleted, evicted or overwritten.
local function contents()
  local version = tonumber(redis.call('GET', KEYS[2]) or 0) or -1
  return {version, redis.call('HLEN', facts), redis.call('HLEN', names)}
end

-- Seals the room; each script that changes it ends with this.
local function seal()
  redis.call('HSET', facts, 's', '')  -- it is one of the facts
  redis.call('HSET', facts, 's', cmsgpack.pack(contents()))
end

local function is_intact(is_held)
  local is_readable, answer = pcall(function()
    local found = contents()
    redis.call('SCARD', KEYS[3])
    redis.call('ZCOUNT', reserved, 0, 0)
    local sealed = redis.call('HGET', facts, 's')
    if sealed then return sealed == cmsgpack.pack(found) end
    return not is_held and found[1] == 0 and found[2] == 0 and found[3] == 0
  end)
  if is_readable then return answer end
  local text = type(answer) == 'table' and answer.err or tostring(answer)
  if not string.find(text, 'WRONGTYPE', 1, true) then error(answer) end
  return false
end

-- Empties a room that another program has changed, and asks all nodes to publish their participants again. Names
-- without hosts are free then. The version continues above any that a node may know. A room that the node has
-- entered (`is_held`) has a seal; any other without one is new.
local function mend(room, is_held)
  if is_intact(is_held) then return end
  local has_version, version = pcall(function() return tonumber(redis.call('GET', KEYS[2])) end)
  version = math.max(has_version and version or 0, now) + 1
  for _, key in ipairs({KEYS[2], facts, names, reserved}) do redis.call('DEL', key) end
  if not pcall(function() return redis.call('SCARD', KEYS[3]) end) then redis.call('DEL', KEYS[3]) end
  redis.call('SET', KEYS[2], string.format('%.0f', version))
  seal()
  local delta = 'R' .. cmsgpack.pack({room, version, '', {{'reset'}}})
  for _, node in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('PUBLISH', 'toolbus:inbox:' .. node, delta) end
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
  if #last > 0 then seal() end
  for _, key in ipairs({KEYS[2], facts, names, reserved}) do
    if #last > 0 then redis.call('PEXPIREAT', key, last[2]) else redis.call('DEL', key) end
  end
end

