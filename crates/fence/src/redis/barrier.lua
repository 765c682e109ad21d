-- Installs a token. KEYS: the fence. ARGV: token (16 digits), holder.
-- Answers {'stale', seen} or {'ok', predecessor or '', seq, '1' and cursor or '0' and ''}.
local seen = redis.call('HGET', KEYS[1], 'token')
if seen and seen > ARGV[1] then return {'stale', seen} end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'holder', ARGV[2])
redis.call('PERSIST', KEYS[1])
local cursor = redis.call('HGET', KEYS[1], 'cursor')
return {'ok', seen or '', redis.call('HGET', KEYS[1], 'seq') or '0', cursor and '1' or '0', cursor or ''}
