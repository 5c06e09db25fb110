-- Says which commands the user of this connection may not run. None of them is run.
-- ARGV: the commands, each packed as a list of words.
-- Returns for each: '' where it may be run, else why not.
local answers = {}
for at, packed in ipairs(ARGV) do
  local words = cmsgpack.unpack(packed)
  local is_known, may = pcall(redis.acl_check_cmd, unpack(words))
  if not is_known then
    answers[at] = type(may) == 'table' and may.err or tostring(may)
  elseif may then
    answers[at] = ''
  else
    -- It is refused: that alone tells whether the command, the key or the channel is the reason.
    local refused = redis.pcall(unpack(words))
    answers[at] = type(refused) == 'table' and refused.err or 'not allowed'
  end
end
return answers
