-- Removes a node from the holders of a room. `one_room.lua` is prepended.
-- KEYS: leases, room version, room holders, facts, names, reserved names, rooms of the node, all rooms.
-- ARGV: the node, the room, and the owners that have too many names in rooms without participants.
local beyond = {}
for at = 3, #ARGV do beyond[ARGV[at]] = true end
mend(ARGV[2], false)
redis.call('SREM', KEYS[3], ARGV[1])
redis.call('SREM', KEYS[7], ARGV[2])
if redis.call('SCARD', KEYS[3]) == 0 then close_room(ARGV[2], KEYS[8], beyond) end
return 1
