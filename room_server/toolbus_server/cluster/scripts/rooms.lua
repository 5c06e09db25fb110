-- Lists rooms sorted by name, with the number of participants and toolkits in each.
-- KEYS: all rooms. ARGV: the name after which to begin, the maximum number of rooms, of facts to read.
-- Returns {1 if there are more, {room, participants, toolkits, room, ...}}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local max_rooms, facts_left = tonumber(ARGV[2]), tonumber(ARGV[3])
local first = ARGV[1] == '' and '-' or '(' .. ARGV[1]
local names = redis.call('ZRANGEBYLEX', KEYS[1], first, '+', 'LIMIT', 0, max_rooms + 1)
local answer = {}
for at, room in ipairs(names) do
  if at > max_rooms or facts_left <= 0 then return {1, answer} end
  local prefix = 'toolbus:{r:' .. room .. '}:'
  local participants, seen = 0, {}
  local toolkits = redis.call('ZCOUNT', prefix .. 'kept', string.format('(%.0f', now), '+inf')
  for _, key in ipairs(redis.call('HKEYS', prefix .. 'facts')) do
    facts_left = facts_left - 1
    local kind, name = string.sub(key, 1, 1), string.sub(key, 19)
    if kind == 'm' then
      participants = participants + 1
    elseif kind == 't' and not seen[name] then
      toolkits = toolkits + 1
      seen[name] = true
    end
  end
  facts_left = facts_left - 1
  for _, value in ipairs({room, participants, toolkits}) do table.insert(answer, value) end
end
return {0, answer}
