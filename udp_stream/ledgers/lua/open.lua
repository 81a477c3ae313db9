-- Find the ledger, or make it where nothing is.
-- KEYS: marks, order, periods, recorded, spans. ARGV: an id for a new ledger, the id expected ('': any), schema, the time.

local known = redis.call('HMGET', KEYS[1], 'ledger_id', 'schema')
if known[1] then
  return {'ok', known[1], known[2] or ''}
end
if ARGV[2] ~= '' then return {'gone'} end
-- Data of a ledger without its marks has lost them. A new ledger over it would give every plate its budget again.
if redis.call('EXISTS', unpack(KEYS)) > 0 then return {'unmarked'} end
redis.call('HSET', KEYS[1], 'ledger_id', ARGV[1], 'schema', ARGV[3], 'made', ARGV[4])
return {'ok', ARGV[1], ARGV[3]}
