-- Takes a node into those that hold a room, and gives it the room as it stands.
-- KEYS: leases, room version, room nodes, facts, names, kept names, rooms of the node, all rooms.
-- ARGV: the node, the room.
-- Returns {version, facts, the time in ms}, or false where the node's lease has ended.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not ends or tonumber(ends) <= now then return false end
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('SADD', KEYS[7], ARGV[2])
redis.call('ZADD', KEYS[8], 0, ARGV[2])
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', now)) do
  local packed = redis.call('HGET', KEYS[5], name)
  local count = '#' .. (packed and cmsgpack.unpack(packed)[1] or '')
  if redis.call('HINCRBY', KEYS[5], count, -1) <= 0 then redis.call('HDEL', KEYS[5], count) end
  redis.call('HDEL', KEYS[4], 'k' .. name)
  redis.call('HDEL', KEYS[5], name)
  redis.call('ZREM', KEYS[6], name)
end
local version = tonumber(redis.call('GET', KEYS[2]) or 0)
return {version, redis.call('HGETALL', KEYS[4]), now}
