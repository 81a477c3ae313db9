-- Close times for ever: nothing new is admitted or recorded under an id of this time or earlier. The latest stands.
-- KEYS: marks, order. ARGV: as the guard, with an empty shard; the time, Unix seconds.

local refused = gone()
if refused then return refused end
redis.call('HSETNX', KEYS[1], 'admitted', redis.call('LLEN', KEYS[2])) -- before the list gets shorter
if not marks[3] or tonumber(ARGV[4]) > tonumber(marks[3]) then redis.call('HSET', KEYS[1], 'archived', ARGV[4]) end
return {'ok', redis.call('HGET', KEYS[1], 'archived')}
