-- One HAT asks to charge its plates. Remembered before; else fenced; else decided, charged and remembered, at once.
-- KEYS: marks, order, periods, balances of the period, the admission.
-- ARGV: as the guard; release id; period; budget; least number admitted; what to remember before the amounts (head);
--       plates, one after the other; charges, 8 bytes each, little endian.
-- A remembered admission is head, amounts charged (0: HALT), plates. A balance is two such integers: spent, charges.

local refused = gone()
if refused then return refused end
local known = redis.call('GET', KEYS[5])
if known then return {'known', known} end
refused = stale()
if refused then return refused end

local release_id, period, budget, least = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local head, plates, charges = ARGV[8], ARGV[9], ARGV[10]
local count = #charges / 8
local width = #plates / math.max(count, 1)
local CHUNK = 1000 -- arguments that `unpack` may put on Lua's stack
local HALT = string.rep('\0', 8)
local sub, pack, unpacked = string.sub, struct.pack, struct.unpack

local first_of_period = redis.call('HLEN', KEYS[4]) == 0
if first_of_period and redis.call('SISMEMBER', KEYS[3], period) == 1 then
  return {'lost', period}
end

local names = {}
for i = 1, count do
  names[i] = sub(plates, (i - 1) * width + 1, i * width)
end

local charged = {}
local writes = {} -- plate, balance, plate, balance...
local written = 0
local amount, charge
for start = 1, count, CHUNK do
  local stop = math.min(start + CHUNK - 1, count)
  local balances = redis.call('HMGET', KEYS[4], unpack(names, start, stop))
  for i = start, stop do
    local spent, times = 0, 0
    local balance = balances[i - start + 1]
    if balance then
      spent, times = unpacked('<i8i8', balance)
    end
    local asked = sub(charges, 8 * i - 7, 8 * i)
    if asked ~= amount then -- mostly, all plates pay the same
      amount, charge = asked, unpacked('<i8', asked)
    end
    if charge <= budget - spent then -- exact: all are below 2^53
      charged[i] = amount
      writes[written + 1] = names[i]
      written = written + 2
      writes[written] = pack('<i8i8', spent + charge, times + 1)
    else
      charged[i] = HALT
    end
  end
end

if written / 2 < least then
  written = 0
  for i = 1, count do
    charged[i] = HALT
  end
end
for start = 1, written, CHUNK do
  redis.call('HSET', KEYS[4], unpack(writes, start, math.min(start + CHUNK - 1, written)))
end
if first_of_period and written > 0 then
  redis.call('SADD', KEYS[3], period)
end
local amounts = table.concat(charged)
redis.call('SET', KEYS[5], head .. amounts .. plates)
redis.call('RPUSH', KEYS[2], release_id)
return {'new', amounts}
