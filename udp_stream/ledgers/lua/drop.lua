-- Take away entries of a period that is over and archived; with the last of them its balances.
-- KEYS: marks, order, unpublished, periods, spans, balances of the period, then admission and release of each entry.
-- ARGV: as the guard, with an empty shard; the period; whether these are its last entries (1 or 0); then each one's id.

local refused = gone()
if refused then return refused end
for i = 6, #ARGV do
  redis.call('LREM', KEYS[2], 1, ARGV[i]) -- from the oldest on, where it is
  redis.call('ZREM', KEYS[3], ARGV[i])
  redis.call('DEL', KEYS[2 * i - 5], KEYS[2 * i - 4])
end
if ARGV[5] == '1' then
  redis.call('SREM', KEYS[4], ARGV[4])
  redis.call('ZREM', KEYS[5], ARGV[4])
  redis.call('DEL', KEYS[6])
end
return {'ok'}
