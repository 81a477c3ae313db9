-- How far the ledger has come: admissions, payloads recorded, and the ids of the oldest and newest admission listed.
-- KEYS: marks, order, recorded. ARGV: as the guard.

local refused = gone()
if refused then return refused end
local listed = redis.call('LLEN', KEYS[2])
local admitted = tonumber(redis.call('HGET', KEYS[1], 'admitted') or listed)
local recorded = tonumber(redis.call('GET', KEYS[3]) or '0')
if listed == 0 then return {'ok', admitted, recorded} end
return {'ok', admitted, recorded, redis.call('LINDEX', KEYS[2], 0), redis.call('LINDEX', KEYS[2], -1)}
