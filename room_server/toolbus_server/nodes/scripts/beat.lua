-- Renews a node's lease, finds those that have ended, and lets the node hear of it through its inbox.
-- KEYS: nodes, version, gone. ARGV: node, incarnation, life in ms, the version that the caller knows,
-- 1 where this is its first beat, how the incarnations of former nodes of its name begin that are known
-- to have ended: their leases end now; '' for none.
-- Returns {0, another that has this node's name, how many ms its lease lives}, {2} where its lease
-- had ended, else {1, version, living or false, gone, how many ms the lease lives that ends first}:
-- of those that are gone the ones that nobody else tidies up after. Who was told so has the life of a
-- lease for it; then another one is told.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local me = ARGV[1] .. ' ' .. ARGV[2]
local function begins(text, how) return string.sub(text, 1, #how) == how end
local ended = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)
for _, each in ipairs(ended) do
  redis.call('ZREM', KEYS[1], each)
  redis.call('SADD', KEYS[3], each)
end
-- Now, as the others have to learn of it also where this node gets no lease.
if #ended > 0 then redis.call('INCR', KEYS[2]) end
-- A lease that ends so late was given before the clock was set back.
for _, each in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now + 2 * ARGV[3], '+inf')) do
  redis.call('ZADD', KEYS[1], now + ARGV[3], each)
end
local was_there = redis.call('ZSCORE', KEYS[1], me)
if not was_there then
  if ARGV[5] ~= '1' then return {2} end
  for _, each in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    if ARGV[6] ~= '' and begins(each, ARGV[1] .. ' ' .. ARGV[6]) then
      redis.call('ZREM', KEYS[1], each)
      redis.call('SADD', KEYS[3], each)
    elseif begins(each, ARGV[1] .. ' ') then
      return {0, each, redis.call('ZSCORE', KEYS[1], each) - now}
    end
  end
  redis.call('SREM', KEYS[3], me)
end
redis.call('ZADD', KEYS[1], now + ARGV[3], me)
redis.call('PUBLISH', 'toolbus:inbox:' .. me, 'B')
if not was_there then redis.call('INCR', KEYS[2]) end
local version = tonumber(redis.call('GET', KEYS[2]) or 0) or 0
local living = false
if version ~= tonumber(ARGV[4]) then living = redis.call('ZRANGE', KEYS[1], 0, -1) end
local gone = {}
for _, each in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  if redis.call('SET', 'toolbus:tidying:' .. each, me, 'PX', ARGV[3], 'NX') then table.insert(gone, each) end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return {1, version, living, gone, first[2] - now}
