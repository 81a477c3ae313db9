-- Remember the fingerprint of the plates' key, the first one for ever; return the one that stands.
-- KEYS: marks. ARGV: as the guard, fingerprint.

local refused = gone()
if refused then return refused end
redis.call('HSETNX', KEYS[1], 'key_fingerprint', ARGV[4])
return {'ok', redis.call('HGET', KEYS[1], 'key_fingerprint')}
