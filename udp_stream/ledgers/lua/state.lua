-- How far the ledger has come, at one moment, and all balances of a period, if one is named.
-- KEYS: marks, order, recorded, then balances of the period. ARGV: as the guard.

local refused = gone()
if refused then return refused end
local ends = {redis.call('LINDEX', KEYS[2], 0), redis.call('LINDEX', KEYS[2], -1)}
return {'ok', redis.call('HGETALL', KEYS[1]), redis.call('LLEN', KEYS[2]), redis.call('GET', KEYS[3]) or '0', ends,
  KEYS[4] and redis.call('HGETALL', KEYS[4]) or {}}
