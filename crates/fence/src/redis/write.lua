-- A guarded write: the check, the mark and the commands are one step, because nothing runs beside a script.
-- KEYS: the fence, then every key that the commands touch (all in one hash slot).
-- ARGV: token (16 digits), '1' to move the cursor or '0', the cursor, then per command its length and words.
-- Answers {'stale', seen}, {'failed', number of the command, message} or {'ok', answers...}.
-- Tokens are compared as text of fixed width: Lua's numbers are doubles.
local seen = redis.call('HGET', KEYS[1], 'token')
if seen and seen > ARGV[1] then return {'stale', seen} end
if seen ~= ARGV[1] then
  redis.call('HSET', KEYS[1], 'token', ARGV[1])
  redis.call('HDEL', KEYS[1], 'holder')
end
local answers, at, number = {'ok'}, 4, 0
while at <= #ARGV do
  local words = {}
  for i = 1, tonumber(ARGV[at]) do words[i] = ARGV[at + i] end
  at, number = at + #words + 1, number + 1
  local answer = redis.pcall(unpack(words))
  if type(answer) == 'table' and answer.err then return {'failed', number, answer.err} end
  answers[number + 1] = answer
end
if ARGV[2] == '1' then
  redis.call('HINCRBY', KEYS[1], 'seq', 1)
  redis.call('HSET', KEYS[1], 'cursor', ARGV[3])
end
return answers
