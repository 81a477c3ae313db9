-- Make a change at once, if what its caller has decided from still holds: the rules are in Python (`stored.py`). Every
-- plate that pays may have been charged so much before, its room, and no more.
-- KEYS: marks, periods, spans, balances of the period, order, recorded (a counter), unpublished; then of each new HAT or
--       record its key; of each id that must be admitted its admission; of each id to be dropped its record.
-- ARGV: as the guard; period; bytes of a plate; the plates that pay, one after the other; of each of them what it pays,
--       in how many charges (negative of what is dropped), and its room, in 8 bytes each; when the slot of each new id
--       ends; how many HATs were admitted before anything was read, or ''; 1 of a rolling budget, else 0; how many are
--       new, and how many must be admitted (no HATs, then, but records); of each new one its id and what is to be kept;
--       the ids to be dropped.
-- Answers 'ok', or 'moved' where something does not hold.

local refused = gone()
if refused then return refused end

local period, width, plates, amounts, ends, version, rolls = unpack(ARGV, 4, 10)
local new, needed = tonumber(ARGV[11]), tonumber(ARGV[12])
local HEAD, FIXED = 12, 7 -- arguments and keys before those that are counted
local dropped, admits = #ARGV - HEAD - 2 * new, new > 0 and needed == 0
local function id(at) return ARGV[HEAD - 1 + 2 * at] end

-- A repeat is answered before anything else is looked at: it changes nothing, and its answer stands for ever.
local known, there = 0, 0
by_chunk(KEYS, FIXED + 1, FIXED + new, function(...) known = known + redis.call('EXISTS', ...) end)
by_chunk(KEYS, FIXED + new + 1, FIXED + new + needed, function(...) there = there + redis.call('EXISTS', ...) end)
if known > 0 or there < needed then return {'moved'} end
if new > 0 then refused = stale() end -- a former owner may read what stands
for at = 1, new do refused = refused or archived(ends, at, id(at)) end
if admits then refused = refused or lost(KEYS[4]) end
if refused then return refused end

-- Counted apart from the list, whose oldest entries may be moved away.
local admitted = tonumber(redis.call('HGET', KEYS[1], 'admitted') or redis.call('LLEN', KEYS[5]))
if version ~= '' and admitted ~= tonumber(version) then return {'moved'} end

local names, balances, ended = cut(plates, tonumber(width)), {}, {}
local before = balances_of(KEYS[4], names)
for at = 1, #names do
  local spent, times = struct.unpack('<i8i8', before, 16 * at - 15)
  local asked, more, room = struct.unpack('<i8i8i8', amounts, 24 * at - 23)
  if spent > room then return {'moved'} end
  if times + more > 0 then
    balances[#balances + 1] = names[at]
    balances[#balances + 1] = struct.pack('<i8i8', spent + asked, times + more) -- exact: all are below 2^53
  else
    ended[#ended + 1] = names[at]
  end
end

-- Redis undoes nothing of a script that fails halfway. So all that can be refused was, and only writes are left. What a
-- user may lack the right to comes first.
for at = 1, dropped do
  local name = ARGV[HEAD + 2 * new + at]
  redis.call('LREM', KEYS[5], 1, name) -- from the oldest on, where it is
  redis.call('ZREM', KEYS[7], name)
  redis.call('DEL', KEYS[FIXED + new + at], KEYS[FIXED + new + needed + at])
end
by_chunk(ended, 1, #ended, function(...) redis.call('HDEL', KEYS[4], ...) end)
by_chunk(balances, 1, #balances, function(...) redis.call('HSET', KEYS[4], ...) end)
if dropped > 0 and redis.call('EXISTS', KEYS[4]) == 0 then
  redis.call('SREM', KEYS[2], period)
  redis.call('ZREM', KEYS[3], period)
elseif #balances > 0 then
  if rolls == '1' then redis.call('ZADD', KEYS[3], 0, period) else redis.call('SADD', KEYS[2], period) end
end
local kept, listed = {}, {}
for at = 1, new do
  kept[2 * at - 1], kept[2 * at] = KEYS[FIXED + at], ARGV[HEAD + 2 * at]
  if not admits then listed[#listed + 1] = redis.call('INCR', KEYS[6]) end
  listed[#listed + 1] = id(at)
end
by_chunk(kept, 1, #kept, function(...) redis.call('MSET', ...) end)
if admits or dropped > 0 then -- nothing new is kept where something is dropped
  redis.call('HSET', KEYS[1], 'admitted', string.format('%d', admitted + new))
end
by_chunk(listed, 1, #listed, function(...)
  if admits then redis.call('RPUSH', KEYS[5], ...) else redis.call('ZADD', KEYS[7], ...) end
end)
return {'ok'}
