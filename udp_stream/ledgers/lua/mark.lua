-- Keep the first text of a fact ('HSETNX'), count it up ('HINCRBY'), or raise it ('HSET'); return the one that stands.
-- KEYS: marks. ARGV: as the guard, then how, the fact's name, and its text.

local refused = gone()
if refused then return refused end
local how, name, text = unpack(ARGV, 4, 6)
local before = redis.call('HGET', KEYS[1], name)
if how ~= 'HSET' or not before or tonumber(text) > tonumber(before) then redis.call(how, KEYS[1], name, text) end
return {'ok', redis.call('HGET', KEYS[1], name)}
