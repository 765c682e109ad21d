-- Lowers a poisoned mark. KEYS: the fence, its audit list. ARGV: token (16 digits), line for the audit.
if #ARGV[1] ~= 16 or ARGV[1]:find('%D') then return redis.error_reply('TN003 the token is not 16 digits') end
local seen = redis.call('HGET', KEYS[1], 'token')
if not seen then return {'missing'} end
redis.call('HSET', KEYS[1], 'token', ARGV[1])
redis.call('HDEL', KEYS[1], 'holder')
redis.call('RPUSH', KEYS[2], seen .. ' -> ' .. ARGV[1] .. ' ' .. ARGV[2])
return {'ok'}
