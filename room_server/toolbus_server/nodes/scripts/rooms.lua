-- Tells which rooms there are, in the order of their names, and how much is in each.
-- KEYS: all rooms. ARGV: behind which name to begin, how many at most, how much to look at.
-- Returns {1 where there are more, {room, participants, toolkits, room, ...}}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local most, effort = tonumber(ARGV[2]), tonumber(ARGV[3])
local first = ARGV[1] == '' and '-' or '(' .. ARGV[1]
local names = redis.call('ZRANGEBYLEX', KEYS[1], first, '+', 'LIMIT', 0, most + 1)
local answer = {}
for at, room in ipairs(names) do
  if at > most or effort <= 0 then return {1, answer} end
  local parts = 'toolbus:{r:' .. room .. '}:'
  local participants, seen = 0, {}
  local toolkits = redis.call('ZCOUNT', parts .. 'kept', string.format('(%.0f', now), '+inf')
  for _, key in ipairs(redis.call('HKEYS', parts .. 'facts')) do
    effort = effort - 1
    local kind, name = string.sub(key, 1, 1), string.sub(key, 19)
    if kind == 'm' then
      participants = participants + 1
    elseif kind == 't' and not seen[name] then
      toolkits = toolkits + 1
      seen[name] = true
    end
  end
  effort = effort - 1
  for _, each in ipairs({room, participants, toolkits}) do table.insert(answer, each) end
end
return {0, answer}
