-- Adds a node to the holders of a room, and returns the room's state. `one_room.lua` is prepended.
-- KEYS: leases, room version, room holders, facts, names, reserved names, rooms of the node, all rooms.
-- ARGV: the node, the room.
-- Returns {version, facts, the time in ms, names}, or false if the node's lease has expired.
if not has_lease(ARGV[1]) then return false end
mend(ARGV[2], false)
for _, key in ipairs({KEYS[2], facts, names, reserved}) do redis.call('PERSIST', key) end
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('SADD', KEYS[7], ARGV[2])
redis.call('ZADD', KEYS[8], 0, ARGV[2])
free_expired_names()
seal()
local version = tonumber(redis.call('GET', KEYS[2]) or 0)
return {version, redis.call('HGETALL', facts), now, redis.call('HGETALL', names)}
