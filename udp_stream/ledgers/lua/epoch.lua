-- Take the next epoch of a shard: owners with an earlier one are refused from now on.
-- KEYS: marks. ARGV: as the guard, with an empty shard; the shard.

local refused = gone()
if refused then return refused end
return {'ok', redis.call('HINCRBY', KEYS[1], 'epoch:' .. ARGV[4], 1)}
