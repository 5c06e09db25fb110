-- Releases the lease of a node that leaves. Other nodes withdraw what is left of its published state.
-- KEYS: leases, version, ended nodes, rooms of the node, addresses, exchange version. ARGV: the node.
local had_lease = redis.call('ZREM', KEYS[1], ARGV[1]) == 1
redis.call('HDEL', KEYS[5], ARGV[1])
if redis.call('EXISTS', KEYS[4]) == 1 then redis.call('SADD', KEYS[3], ARGV[1]) end
-- Nodes of any other release may come now. Without its lease this node may have lost the key to them.
if had_lease and redis.call('EXISTS', KEYS[1]) == 0 then redis.call('DEL', KEYS[6]) end
if redis.call('EXISTS', KEYS[1], KEYS[3]) == 0 then
  redis.call('DEL', KEYS[2])
else
  redis.call('INCR', KEYS[2])
end
return 1
