-- Checks the keys of a room that a node holds, and mends them. `one_room.lua` is prepended.
-- KEYS: leases, room version, room holders, facts, names, reserved names, rooms of the node, all rooms.
-- ARGV: the node, the room.
-- Returns 1 if the node was no holder, so that it may lack changes; else 0; false if its lease has expired.
if not has_lease(ARGV[1]) then return false end
mend(ARGV[2], true)
local was_missing = redis.call('SADD', KEYS[3], ARGV[1])
redis.call('SADD', KEYS[7], ARGV[2])
redis.call('ZADD', KEYS[8], 0, ARGV[2])
return was_missing
