-- Remember a fact about the ledger, the first one under its name for ever; return the one that is kept.
-- KEYS: marks. ARGV: as the guard, name, text.

local refused = gone()
if refused then return refused end
redis.call('HSETNX', KEYS[1], ARGV[4], ARGV[5])
return {'ok', redis.call('HGET', KEYS[1], ARGV[4])}
