-- Takes back the lease of a node that leaves. What it told of rooms, if anything is left, others take back.
-- KEYS: nodes, version, gone, rooms of the node. ARGV: the node.
redis.call('ZREM', KEYS[1], ARGV[1])
if redis.call('EXISTS', KEYS[4]) == 1 then redis.call('SADD', KEYS[3], ARGV[1]) end
if redis.call('EXISTS', KEYS[1], KEYS[3]) == 0 then
  redis.call('DEL', KEYS[2])
else
  redis.call('INCR', KEYS[2])
end
return 1
