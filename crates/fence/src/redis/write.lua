-- A guarded write: the check, the mark and the commands are one step, because nothing runs beside a script.
-- KEYS: the fence, then every key that the commands touch (all in one hash slot).
-- ARGV: token (16 digits), '1' to move the cursor or '0', the cursor, then per command its length and words.
-- Answers {'stale', seen}, {'failed', number of the command, message} or {'ok', answers...}.
-- Fails with TN003, and writes nothing, if a token, presented or stored, is not 16 digits.
-- Tokens are compared as text, because Lua's numbers are doubles. That is right only if all have the same width: `5` sorts
-- above `0000000000000042`.
local function is_token(text) return #text == 16 and not text:find('%D') end
if not is_token(ARGV[1]) then return redis.error_reply('TN003 the token presented is not 16 digits') end
local seen = redis.call('HGET', KEYS[1], 'token')
if seen and not is_token(seen) then return redis.error_reply('TN003 the token stored is not 16 digits; repair it') end
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
