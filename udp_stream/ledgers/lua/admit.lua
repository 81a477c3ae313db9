-- Charge plates for some HATs and remember these, all at once, if what the caller has decided from still holds: the
-- rule is in Python (`stored.py`). Every plate that pays may have been charged so much before, its room, and no more.
-- KEYS: marks, order, periods (of rolling budgets: spans), balances of the period, then the admission of each HAT, then
--       of a rolling budget the balances of the other spans that share a window with ours.
-- ARGV: as the guard; period; bytes of a plate; the plates that pay, one after the other; of each of them what it pays,
--       in how many charges, and its room, in 8 bytes each; when the slot of each HAT ends; of a rolling budget, else
--       '': two names between which all spans near by are, the names that the caller has found there, without ours, a
--       line each, the digest of our plates' balances in the others, and how many HATs were admitted before these were
--       read; then of each HAT its id and what is to be remembered.
-- Answers 'ok'; 'known' and what is remembered of each HAT, '' where nothing is; 'over' and the balances of the plates
-- where one has no room; 'moved' where the other spans have changed.

local refused = gone()
if refused then return refused end

local period, width, plates, amounts, ends, first, last, listing, digest, seen = unpack(ARGV, 4, 13)
local HEAD = 13 -- arguments before the HATs
local rolls, hats = first ~= '', (#ARGV - HEAD) / 2

-- A repeat is answered before anything else is looked at: it charges nothing, and its answer stands for ever.
local known, is_known = {}, false
by_chunk(KEYS, 5, 4 + hats, function(...)
  for _, memory in ipairs(redis.call('MGET', ...)) do
    known[#known + 1] = memory or ''
    is_known = is_known or memory ~= false
  end
end)
if is_known then return {'known', known} end

refused = stale()
for hat = 1, hats do refused = refused or archived(ends, hat, ARGV[HEAD + 2 * hat - 1]) end
if refused then return refused end

-- Charges are never taken back, so a period that is listed has balances. Without them every plate looked new.
local is_first = redis.call('HLEN', KEYS[4]) == 0
local is_listed
if rolls then is_listed = redis.call('ZSCORE', KEYS[3], period)
else is_listed = redis.call('SISMEMBER', KEYS[3], period) == 1 end
if is_first and is_listed then return {'lost', period} end

-- Counted apart from the list, whose oldest entries may be moved away.
local admitted = tonumber(redis.call('HGET', KEYS[1], 'admitted') or redis.call('LLEN', KEYS[2]))
local names = cut(plates, tonumber(width))
for i = 5 + hats, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then return {'lost', string.sub(KEYS[i], #KEYS[4] - #period + 1)} end
end
if rolls and admitted ~= tonumber(seen) then -- somebody has charged meanwhile
  local there, near = {}, {}
  for _, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[3], '[' .. first, '[' .. last)) do
    if name ~= period then there[#there + 1] = name end
  end
  if table.concat(there, '\n') ~= listing then return {'moved'} end
  for i = 5 + hats, #KEYS do near[#near + 1] = balances_of(KEYS[i], names) end
  if redis.sha1hex(table.concat(near)) ~= digest then return {'moved'} end
end

local before, balances = balances_of(KEYS[4], names), {}
local pack, unpacked = struct.pack, struct.unpack
for at = 1, #names do
  local spent, times = unpacked('<i8i8', before, 16 * at - 15)
  local asked, more, room = unpacked('<i8i8i8', amounts, 24 * at - 23)
  if spent > room then return {'over', before} end
  balances[2 * at - 1] = names[at]
  balances[2 * at] = pack('<i8i8', spent + asked, times + more) -- exact: all are below 2^53
end

-- Redis undoes nothing of a script that fails halfway. So all that can be refused was, and only writes are left.
local ids, memories = {}, {} -- key, memory, key, memory...
for hat = 1, hats do
  ids[hat] = ARGV[HEAD + 2 * hat - 1]
  memories[2 * hat - 1], memories[2 * hat] = KEYS[4 + hat], ARGV[HEAD + 2 * hat]
end
by_chunk(balances, 1, #balances, function(...) redis.call('HSET', KEYS[4], ...) end)
if is_first and #balances > 0 then
  if rolls then redis.call('ZADD', KEYS[3], 0, period) else redis.call('SADD', KEYS[3], period) end
end
by_chunk(memories, 1, #memories, function(...) redis.call('MSET', ...) end)
redis.call('HSET', KEYS[1], 'admitted', string.format('%d', admitted + hats))
by_chunk(ids, 1, hats, function(...) redis.call('RPUSH', KEYS[2], ...) end)
return {'ok'}
