-- Takes a node into those that hold a room, and gives it the room as it stands.
-- `one_room.lua` stands before it.
-- KEYS: leases, room version, room nodes, facts, names, kept names, rooms of the node, all rooms.
-- ARGV: the node, the room.
-- Returns {version, facts, the time in ms}, or false where the node's lease has ended.
if not lives(ARGV[1]) then return false end
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('SADD', KEYS[7], ARGV[2])
redis.call('ZADD', KEYS[8], 0, ARGV[2])
free_ended()
local version = tonumber(redis.call('GET', KEYS[2]) or 0)
return {version, redis.call('HGETALL', facts), now}
