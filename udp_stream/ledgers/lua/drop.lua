-- Take away entries of a period that is over and archived, and their charges from its balances: at any time these are
-- the sums of the entries that are left.
-- KEYS: marks, order, unpublished, periods, spans, balances of the period, then admission and release of each entry.
-- ARGV: as the guard, with an empty shard; the period; then each entry's id.

local refused = gone()
if refused then return refused end

local HEAD = 20 -- bytes: budget, then the sizes of period and terms, and the number of members (`redis.py`)
local sums, times = {}, {}
for i = 5, #ARGV do
  local memory = redis.call('GET', KEYS[2 * i - 3])
  if memory then
    local _, period, terms, members = struct.unpack('<i8I4I4I4', memory)
    local charged = HEAD + period + terms + 1
    local plates = charged + 8 * members
    local width = (#memory - plates + 1) / members
    for m = 0, members - 1 do
      local amount = struct.unpack('<i8', memory, charged + 8 * m)
      if amount > 0 then
        local plate = string.sub(memory, plates + width * m, plates + width * (m + 1) - 1)
        sums[plate], times[plate] = (sums[plate] or 0) + amount, (times[plate] or 0) + 1
      end
    end
  end
end

-- Redis undoes nothing of a script that fails halfway. What a user may lack the right to comes first.
for i = 5, #ARGV do
  redis.call('LREM', KEYS[2], 1, ARGV[i]) -- from the oldest on, where it is
  redis.call('ZREM', KEYS[3], ARGV[i])
  redis.call('DEL', KEYS[2 * i - 3], KEYS[2 * i - 2])
end
for plate, sum in pairs(sums) do
  local balance = redis.call('HGET', KEYS[6], plate)
  if balance then
    local spent, charges = struct.unpack('<i8i8', balance)
    if charges > times[plate] then
      redis.call('HSET', KEYS[6], plate, struct.pack('<i8i8', spent - sum, charges - times[plate]))
    else
      redis.call('HDEL', KEYS[6], plate)
    end
  end
end
if redis.call('EXISTS', KEYS[6]) == 0 then
  redis.call('SREM', KEYS[4], ARGV[4])
  redis.call('ZREM', KEYS[5], ARGV[4])
end
return {'ok'}
