-- Installs a token. KEYS: the fence. ARGV: token (16 digits), holder.
-- Fails with TN003 if a token, presented or stored, is not 16 digits. Else answers {'stale', seen} or {'ok', predecessor or '', seq, '1' and cursor or '0' and ''}.
-- Tokens are compared as text, because Lua's numbers are doubles. That is right only if all have the same width: `5` sorts
-- above `0000000000000042`.
local function is_token(text) return #text == 16 and not text:find('%D') end
if not is_token(ARGV[1]) then return redis.error_reply('TN003 the token presented is not 16 digits') end
local seen = redis.call('HGET', KEYS[1], 'token')
if seen and not is_token(seen) then return redis.error_reply('TN003 the token stored is not 16 digits; repair it') end
if seen and seen > ARGV[1] then return {'stale', seen} end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'holder', ARGV[2])
redis.call('PERSIST', KEYS[1])
local cursor = redis.call('HGET', KEYS[1], 'cursor')
return {'ok', seen or '', redis.call('HGET', KEYS[1], 'seq') or '0', cursor and '1' or '0', cursor or ''}
