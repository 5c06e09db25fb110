-- Takes a node into those that hold a room, and gives it the room as it stands.
-- KEYS: leases, room version, room nodes, facts, rooms of the node. ARGV: the node, the room.
-- Returns {version, facts}, or false where the node's lease has ended.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not ends or tonumber(ends) <= now then return false end
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('SADD', KEYS[5], ARGV[2])
local version = tonumber(redis.call('GET', KEYS[2]) or 0)
return {version, redis.call('HGETALL', KEYS[4])}
