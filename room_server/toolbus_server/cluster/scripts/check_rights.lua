-- Checks which commands the user of this connection may run. None of them is run.
-- ARGV: the commands, each a packed list of the command and its arguments.
-- Returns for each 1 where the user may run it, else 0.
local answers = {}
for at, packed in ipairs(ARGV) do
  -- A command that this server does not have raises an error.
  local is_known, is_allowed = pcall(redis.acl_check_cmd, unpack(cmsgpack.unpack(packed)))
  answers[at] = is_known and is_allowed and 1 or 0
end
return answers
