-- Takes a node out of those that hold a room; a room that nobody holds is gone.
-- KEYS: room version, room nodes, facts, names, rooms of the node. ARGV: the node, the room.
redis.call('SREM', KEYS[2], ARGV[1])
redis.call('SREM', KEYS[5], ARGV[2])
if redis.call('SCARD', KEYS[2]) == 0 then redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4]) end
return 1
