-- Changes facts of a room, and tells all nodes that hold it.
-- `one_room.lua` stands before it.
-- KEYS: leases, room version, room nodes, facts, names, kept names, rooms of the writer, all rooms.
-- ARGV: the writer ("node incarnation"), the room, how long a name is kept in ms, the changes, how many
--   names are kept of one identity: those beyond are free at once, as at each node. The changes are packed:
--   {"in", place, epoch, facts}             a participant, new or changed
--   {"aside", place, epoch, facts, place}   it holds another place from now on, with all that it hosts
--   {"out", place, epoch, keep}             it has gone; its names are kept for it or not
--   {"up", place, epoch, name, owner, digest, claimed, facts}    it hosts a toolkit; 0 claims nothing
--   {"down", place, epoch, name, keep}      it does not any more
-- A writer without a lease changes nothing: false. Else {version, what came of each}: a number, which for
-- "up" is the toolkit's generation; 0 where a newer connection has the place; "taken" where the name is
-- another's. With a writer that has ended in the place of ARGV[1] and "purge" for changes, all that it told
-- is taken back.
local writer, room, kept_ms, most_kept = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local is_purge = ARGV[4] == 'purge'
if not is_purge and not lives(writer) then return false end

local function put(key, field, value) redis.call('HSET', key, field, cmsgpack.pack(value)) end

-- A name: {owner, kept until, {digest, number, hosts, digest, number, hosts, ...}}
local function slot(record, digest)
  for at = 1, #record[3], 3 do
    if record[3][at] == digest then return at end
  end
end

-- A name that nobody serves stands among the facts as 'k' NAME: {until when, generation, facts}
local function keep_name(name, record, told)
  free_ended()
  if tonumber(redis.call('HGET', names, '#' .. record[1]) or 0) >= most_kept then
    return redis.call('HDEL', names, name)
  end
  redis.call('HINCRBY', names, '#' .. record[1], 1)
  record[2] = now + kept_ms
  put(names, name, record)
  redis.call('ZADD', kept, record[2], name)
  put(facts, 'k' .. name, {record[2], told[4], told[5]})
end

local function release(name, told, keep)
  local record = get(names, name)
  local at = record and slot(record, told[3])
  if not at then return end
  record[3][at + 2] = record[3][at + 2] - 1
  if record[3][at + 2] <= 0 then
    for _ = 1, 3 do table.remove(record[3], at) end
  end
  if #record[3] == 0 then
    if not keep then return redis.call('HDEL', names, name) end
    return keep_name(name, record, told)
  end
  put(names, name, record)
end

local function claim(name, owner, digest, claimed)
  local record = get(names, name)
  if record and record[1] ~= owner and (#record[3] > 0 or record[2] > now) then return nil end
  if record and record[2] > 0 then forget_kept(name, record[1]) end
  if record and record[1] ~= owner then record = nil end
  if not record then record = {owner, 0, {}} end
  record[2] = 0
  local at = slot(record, digest)
  if at then
    record[3][at + 2] = record[3][at + 2] + 1
    put(names, name, record)
    return record[3][at + 1]
  end
  local last = tonumber(redis.call('HGET', names, '=' .. owner) or 0)
  local most = last
  for each = 2, #record[3], 3 do most = math.max(most, record[3][each]) end
  local number = claimed > 0 and claimed or most + 1
  if number > last and number < 1099511627776 then
    redis.call('HSET', names, '=' .. owner, string.format('%.0f', number))
  end
  for _, each in ipairs({digest, number, 1}) do table.insert(record[3], each) end
  put(names, name, record)
  return number
end

local function down(place, name, keep)
  local field = 't' .. place .. '\0' .. name
  local told = get(facts, field)
  if not told then return false end
  redis.call('HDEL', facts, field)
  release(name, told, keep)
  return true
end

-- What a place hosts stands with it: {node, epoch, facts, {name, ...}}
local function out(place, keep)
  local told = get(facts, 'm' .. place)
  if not told then return end
  for _, name in ipairs(told[4]) do down(place, name, keep) end
  redis.call('HDEL', facts, 'm' .. place)
end

local function holds(place, epoch)
  local told = get(facts, 'm' .. place)
  if told and told[1] == writer and told[2] == epoch then return told end
end

local function index(list, value)
  for at, each in ipairs(list) do
    if each == value then return at end
  end
end

local apply = {}

apply['in'] = function(change)
  local place, epoch = change[2], change[3]
  local told = get(facts, 'm' .. place)
  if told and told[2] > epoch then return 0 end
  -- Of two connections that claim to be one, the first stays as long as its node lives.
  if told and told[2] == epoch and told[1] ~= writer and lives(told[1]) then return 0 end
  local hosted = {}
  if told and told[1] == writer and told[2] == epoch then
    hosted = told[4]
  elseif told then
    for _, name in ipairs(told[4]) do down(place, name, true) end
  end
  put(facts, 'm' .. place, {writer, epoch, change[4], hosted})
  return 1
end

apply['aside'] = function(change)
  local place, aside = change[2], change[5]
  local told = holds(place, change[3])
  if not told then return 0 end
  for _, name in ipairs(told[4]) do
    local field = '\0' .. name
    redis.call('HSET', facts, 't' .. aside .. field, redis.call('HGET', facts, 't' .. place .. field))
    redis.call('HDEL', facts, 't' .. place .. field)
  end
  redis.call('HDEL', facts, 'm' .. place)
  put(facts, 'm' .. aside, {writer, change[3], change[4], told[4]})
  return 1
end

apply['out'] = function(change)
  if not holds(change[2], change[3]) then return 0 end
  out(change[2], change[4])
  return 1
end

apply['up'] = function(change)
  local place, epoch, name, owner, digest = change[2], change[3], change[4], change[5], change[6]
  local told = holds(place, epoch)
  if not told then return 0 end
  local field = 't' .. place .. '\0' .. name
  local before = get(facts, field)
  local number
  if before and before[3] == digest then
    number = before[4]
  else
    number = claim(name, owner, digest, change[7])
    if not number then return 'taken' end
    if before then release(name, before, true) end
  end
  put(facts, field, {writer, epoch, digest, number, change[8]})
  if not index(told[4], name) then
    table.insert(told[4], name)
    put(facts, 'm' .. place, told)
  end
  return number
end

apply['down'] = function(change)
  local told = holds(change[2], change[3])
  if not told or not down(change[2], change[4], change[5]) then return 0 end
  table.remove(told[4], index(told[4], change[4]))
  put(facts, 'm' .. change[2], told)
  return 1
end

local changes = {}
if is_purge then
  local all = redis.call('HGETALL', facts)
  for at = 1, #all, 2 do
    if string.sub(all[at], 1, 1) == 'm' then
      local told = cmsgpack.unpack(all[at + 1])
      if told[1] == writer then
        table.insert(changes, {'out', string.sub(all[at], 2), told[2], true})
      end
    end
  end
  redis.call('SREM', KEYS[3], writer)
  redis.call('SREM', KEYS[7], room)
else
  redis.call('SADD', KEYS[7], room)  -- whatever becomes of the writer, this is found
  changes = cmsgpack.unpack(ARGV[4])
end

local results, applied = {}, {}
for at, change in ipairs(changes) do
  local result = apply[change[1]](change)
  results[at] = result
  if result ~= 0 and result ~= 'taken' then
    if change[1] == 'up' then change[7] = result end
    table.insert(applied, change)
  end
end
local holders = redis.call('SMEMBERS', KEYS[3])
if #holders == 0 then
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6])
  redis.call('ZREM', KEYS[8], room)
  return {0, results}
end
if #applied == 0 then return {tonumber(redis.call('GET', KEYS[2]) or 0), results} end
local version = redis.call('INCR', KEYS[2])
local news = 'R' .. cmsgpack.pack({room, version, writer, applied})
for _, each in ipairs(holders) do redis.call('PUBLISH', 'toolbus:inbox:' .. each, news) end
return {version, results}
