-- All balances of a period and the number of admissions, at one moment.
-- KEYS: marks, order, balances of the period. ARGV: as the guard.

local refused = gone()
if refused then return refused end
return {'ok', redis.call('LLEN', KEYS[2]), redis.call('HGETALL', KEYS[3])}
