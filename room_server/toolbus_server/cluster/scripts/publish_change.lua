-- Changes facts of a room, and publishes the changes to all nodes that hold it. `one_room.lua` is prepended.
-- KEYS: leases, room version, room holders, facts, names, reserved names, rooms of the writer, all rooms.
-- ARGV: the writer ("node incarnation"), the room, how long a name is reserved in ms, the changes, the
--   maximum number of names that are reserved for one identity: further names are free at once, as at each
--   node; 1 if the writer has entered the room. The changes are packed:
--   {"in", slot, epoch, facts}              a participant joined or changed
--   {"aside", slot, epoch, facts, slot}     it moves to another slot, with its toolkits
--   {"out", slot, epoch, keep}              it left; its names are reserved for it or not
--   {"up", slot, epoch, name, owner, digest, number, facts, base, supersede}    it hosts a toolkit; number 0 and
--                                           base -1 claim nothing; to supersede is to precede all that are there
--   {"down", slot, epoch, name, keep}       it no longer hosts a toolkit
-- Returns false if the writer has no lease: nothing is changed. Else {version, the result of each change}: 1, for
-- "up" {number, base} of the generation; 0 if a newer connection has the slot; "taken" if the name belongs to
-- another identity. With an ended node as ARGV[1] and "purge" for changes, all that it
-- published is withdrawn.
local writer, room, reserve_ms, max_reserved = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local is_purge = ARGV[4] == 'purge'
if not is_purge and not has_lease(writer) then return false end

mend(room, ARGV[6] == '1')

local function put(key, field, value) redis.call('HSET', key, field, cmsgpack.pack(value)) end

-- A name: {owner, reserved until, {digest, number, hosts, base, digest, number, hosts, base, ...}}
local function find_digest(record, digest)
  for at = 1, #record[3], 4 do
    if record[3][at] == digest then return at end
  end
end

-- A name without hosts is stored among the facts as 'k' NAME: {reserved until, generation, facts}
local function reserve_name(name, record, fact)
  free_expired_names()
  if tonumber(redis.call('HGET', names, '#' .. record[1]) or 0) >= max_reserved then
    return redis.call('HDEL', names, name)
  end
  redis.call('HINCRBY', names, '#' .. record[1], 1)
  record[2] = now + reserve_ms
  put(names, name, record)
  redis.call('ZADD', reserved, record[2], name)
  put(facts, 'k' .. name, {record[2], fact[4], fact[5]})
end

local function release(name, fact, keep)
  local record = get(names, name)
  local at = record and find_digest(record, fact[3])
  if not at then return end
  record[3][at + 2] = record[3][at + 2] - 1
  if record[3][at + 2] <= 0 then
    for _ = 1, 4 do table.remove(record[3], at) end
  end
  if #record[3] == 0 then
    if not keep then return redis.call('HDEL', names, name) end
    return reserve_name(name, record, fact)
  end
  put(names, name, record)
end

-- The same rule as `place` in registry/generations.py.
local function place(owner, generations, known, number, base, supersede)
  if number == 0 then
    if known and not supersede then return generations[known + 1], generations[known + 3] end
    number = tonumber(redis.call('HGET', names, '=' .. owner) or 0)
    for at = 2, #generations, 4 do number = math.max(number, generations[at]) end
    number = number + 1
  end
  if supersede then base = number end
  if known then
    return math.max(number, generations[known + 1]), math.max(base, generations[known + 3])
  end
  if base < 0 then
    base = 0
    for at = 4, #generations, 4 do
      if generations[at] <= number then base = math.max(base, generations[at]) end
    end
  end
  return number, base
end

local function claim(name, owner, digest, number, base, supersede)
  local record = get(names, name)
  if record and record[1] ~= owner and (#record[3] > 0 or record[2] > now) then return nil end
  if record and record[2] > 0 then end_reservation(name, record[1]) end
  if record and record[1] ~= owner then record = nil end
  if not record then record = {owner, 0, {}} end
  record[2] = 0
  local generations, known = record[3], find_digest(record, digest)
  number, base = place(owner, generations, known, number, base, supersede)
  if known then
    generations[known + 2] = generations[known + 2] + 1
    generations[known + 1], generations[known + 3] = number, base
  else
    for _, field in ipairs({digest, number, 1, base}) do table.insert(generations, field) end
  end
  local last = tonumber(redis.call('HGET', names, '=' .. owner) or 0)
  if number > last and number < 1099511627776 then
    redis.call('HSET', names, '=' .. owner, string.format('%.0f', number))
  end
  put(names, name, record)
  return number, base
end

local function down(slot, name, keep)
  local field = 't' .. slot .. '\0' .. name
  local fact = get(facts, field)
  if not fact then return false end
  redis.call('HDEL', facts, field)
  release(name, fact, keep)
  return true
end

-- A participant is stored with the names of its toolkits: {node, epoch, facts, {name, ...}}
local function out(slot, keep)
  local fact = get(facts, 'm' .. slot)
  if not fact then return end
  for _, name in ipairs(fact[4]) do down(slot, name, keep) end
  redis.call('HDEL', facts, 'm' .. slot)
end

local function holds(slot, epoch)
  local fact = get(facts, 'm' .. slot)
  if fact and fact[1] == writer and fact[2] == epoch then return fact end
end

local function index(list, value)
  for at, item in ipairs(list) do
    if item == value then return at end
  end
end

local apply = {}

apply['in'] = function(change)
  local slot, epoch = change[2], change[3]
  local fact = get(facts, 'm' .. slot)
  if fact and fact[2] > epoch then return 0 end
  -- Of two connections with the same epoch, the first stays while its node has a lease.
  if fact and fact[2] == epoch and fact[1] ~= writer and has_lease(fact[1]) then return 0 end
  local hosted = {}
  if fact and fact[1] == writer and fact[2] == epoch then
    hosted = fact[4]
  elseif fact then
    for _, name in ipairs(fact[4]) do down(slot, name, true) end
  end
  put(facts, 'm' .. slot, {writer, epoch, change[4], hosted})
  return 1
end

apply['aside'] = function(change)
  local slot, new_slot = change[2], change[5]
  local fact = holds(slot, change[3])
  if not fact then return 0 end
  for _, name in ipairs(fact[4]) do
    local field = '\0' .. name
    redis.call('HSET', facts, 't' .. new_slot .. field, redis.call('HGET', facts, 't' .. slot .. field))
    redis.call('HDEL', facts, 't' .. slot .. field)
  end
  redis.call('HDEL', facts, 'm' .. slot)
  put(facts, 'm' .. new_slot, {writer, change[3], change[4], fact[4]})
  return 1
end

apply['out'] = function(change)
  if not holds(change[2], change[3]) then return 0 end
  out(change[2], change[4])
  return 1
end

apply['up'] = function(change)
  local slot, epoch, name, owner, digest = change[2], change[3], change[4], change[5], change[6]
  local fact = holds(slot, epoch)
  if not fact then return 0 end
  local field = 't' .. slot .. '\0' .. name
  local before = get(facts, field)
  -- The claim counts this host once more, so that its generation stays until its former offer is released.
  local number, base = claim(name, owner, digest, change[7], change[9], change[10])
  if not number then return 'taken' end
  if before then release(name, before, true) end
  put(facts, field, {writer, epoch, digest, number, change[8]})
  if not index(fact[4], name) then
    table.insert(fact[4], name)
    put(facts, 'm' .. slot, fact)
  end
  return {number, base}
end

apply['down'] = function(change)
  local fact = holds(change[2], change[3])
  if not fact or not down(change[2], change[4], change[5]) then return 0 end
  table.remove(fact[4], index(fact[4], change[4]))
  put(facts, 'm' .. change[2], fact)
  return 1
end

local changes = {}
if is_purge then
  local all = redis.call('HGETALL', facts)
  for at = 1, #all, 2 do
    if string.sub(all[at], 1, 1) == 'm' then
      local fact = cmsgpack.unpack(all[at + 1])
      if fact[1] == writer then
        table.insert(changes, {'out', string.sub(all[at], 2), fact[2], true})
      end
    end
  end
  redis.call('SREM', KEYS[3], writer)
  redis.call('SREM', KEYS[7], room)
else
  redis.call('SADD', KEYS[7], room)  -- so that the room is found if the writer ends
  changes = cmsgpack.unpack(ARGV[4])
end

local results, applied = {}, {}
for at, change in ipairs(changes) do
  local result = apply[change[1]](change)
  results[at] = result
  if result ~= 0 and result ~= 'taken' then
    if change[1] == 'up' then change[7], change[9] = result[1], result[2] end
    table.insert(applied, change)
  end
end
local holders = redis.call('SMEMBERS', KEYS[3])
if #holders == 0 then
  close_room(room, KEYS[8], {})
  return {0, results}
end
if #applied == 0 then seal() end
if #applied == 0 then return {tonumber(redis.call('GET', KEYS[2]) or 0), results} end
local version = redis.call('INCR', KEYS[2])
seal()
local delta = 'R' .. cmsgpack.pack({room, version, writer, applied})
for _, node in ipairs(holders) do redis.call('PUBLISH', 'toolbus:inbox:' .. node, delta) end
return {version, results}
