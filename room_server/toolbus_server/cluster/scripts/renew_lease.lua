-- Renews a node's lease, removes expired leases, and sends an echo to the node's inbox.
-- KEYS: leases, version, ended nodes, addresses, exchange version. ARGV: node, incarnation, lease duration in ms, the
-- version that the caller knows, 1 for its first renewal, the prefix of the incarnations of former nodes of its name
-- that are known to have ended ('' for none): their leases end now; the URL at which other nodes reach it, or ''; its
-- exchange version.
-- Returns {0, the other node that has this name, ms until its lease expires}, {2} if the node's lease had
-- expired, {3, a live node of another exchange version, that version or ''}, else {1, version, live nodes or false if
-- unchanged, ended nodes to clean up after, ms until the first lease expires, the addresses by node or false if
-- unchanged}. Each ended node is returned to one node at a time: that one has the duration of a lease for it.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local id = ARGV[1] .. ' ' .. ARGV[2]
local function has_prefix(text, prefix) return string.sub(text, 1, #prefix) == prefix end
local expired = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)
for _, node in ipairs(expired) do
  redis.call('ZREM', KEYS[1], node)
  redis.call('SADD', KEYS[3], node)
  redis.call('HDEL', KEYS[4], node)
end
-- Counted now, as other nodes have to see it even if this node gets no lease.
if #expired > 0 then redis.call('INCR', KEYS[2]) end
-- A lease with so late an expiry was given before the clock was set back.
for _, node in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now + 2 * ARGV[3], '+inf')) do
  redis.call('ZADD', KEYS[1], now + ARGV[3], node)
end
-- Releases without an exchange version have their leases at its key. While a version is there, this script of theirs
-- fails at its first access to the key: their nodes get no lease.
local function is_of_leases() return redis.call('TYPE', KEYS[5]).ok == 'zset' end
local function other_exchange()
  if is_of_leases() then
    return redis.call('ZRANGEBYSCORE', KEYS[5], string.format('(%.0f', now), '+inf', 'LIMIT', 0, 1)[1], ''
  end
  local version = redis.call('GET', KEYS[5])
  if version ~= ARGV[8] then return redis.call('ZRANGE', KEYS[1], 0, 0)[1], version or '' end
end
local had_lease = redis.call('ZSCORE', KEYS[1], id)
if not had_lease then
  if ARGV[5] ~= '1' then return {2} end
  local other, version = other_exchange()
  if other then return {3, other, version} end
  for _, node in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    if ARGV[6] ~= '' and has_prefix(node, ARGV[1] .. ' ' .. ARGV[6]) then
      redis.call('ZREM', KEYS[1], node)
      redis.call('SADD', KEYS[3], node)
      redis.call('HDEL', KEYS[4], node)
    elseif has_prefix(node, ARGV[1] .. ' ') then
      return {0, node, redis.call('ZSCORE', KEYS[1], node) - now}
    end
  end
  redis.call('SREM', KEYS[3], id)
end
if is_of_leases() then  -- all have expired, unless another program had deleted the version
  for _, node in ipairs(redis.call('ZRANGE', KEYS[5], 0, -1)) do
    redis.call('SADD', KEYS[3], node)
    redis.call('HDEL', KEYS[4], node)
  end
end
redis.call('SET', KEYS[5], ARGV[8], 'PX', ARGV[3])
redis.call('ZADD', KEYS[1], now + ARGV[3], id)
redis.call('PUBLISH', 'toolbus:inbox:' .. id, 'B')
local has_moved = ARGV[7] ~= '' and redis.call('HGET', KEYS[4], id) ~= ARGV[7]
if has_moved then redis.call('HSET', KEYS[4], id, ARGV[7]) end
if has_moved or not had_lease then redis.call('INCR', KEYS[2]) end
local version = tonumber(redis.call('GET', KEYS[2]) or 0) or 0
local live, addresses = false, false
if version ~= tonumber(ARGV[4]) then
  live = redis.call('ZRANGE', KEYS[1], 0, -1)
  addresses = {}
  for _, node in ipairs(live) do
    local url = redis.call('HGET', KEYS[4], node)
    if url then
      table.insert(addresses, node)
      table.insert(addresses, url)
    end
  end
end
local to_clean = {}
for _, node in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  if redis.call('SET', 'toolbus:nodes:cleanup:' .. node, id, 'PX', ARGV[3], 'NX') then table.insert(to_clean, node) end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return {1, version, live, to_clean, first[2] - now, addresses}
