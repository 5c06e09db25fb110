-- Removes a node from the holders of a room; a room without holders is deleted.
-- KEYS: room version, room holders, facts, names, reserved names, rooms of the node, all rooms.
-- ARGV: the node, the room.
redis.call('SREM', KEYS[2], ARGV[1])
redis.call('SREM', KEYS[6], ARGV[2])
if redis.call('SCARD', KEYS[2]) == 0 then
  redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
  redis.call('ZREM', KEYS[7], ARGV[2])
end
return 1
