-- Put before every script but the one that makes a ledger: what it must not go on without, and what several need.
-- KEYS[1]: the ledger's marks. ARGV[1]: the ledger's id; ARGV[2], ARGV[3]: the caller's shard and epoch, or '' and ''.

local marks = redis.call('HMGET', KEYS[1], 'ledger_id', 'epoch:' .. ARGV[2], 'archived')

-- The ledger we opened is not here any more: flushed, or another one in its place.
local function gone()
  if marks[1] ~= ARGV[1] then return {'gone'} end
end

-- An id of a time that is archived: nothing new is admitted or recorded under it. `at` counts from 1 in `ends`, which
-- has the end of each id in eight bytes.
local function archived(ends, at, release_id)
  if marks[3] and struct.unpack('<i8', ends, 8 * at - 7) <= tonumber(marks[3]) then
    return {'archived', release_id, marks[3]}
  end
end

-- Another worker has taken a later epoch of this shard, or the ledger has forgotten ours.
local function stale()
  if ARGV[2] ~= '' and tonumber(marks[2] or 0) ~= tonumber(ARGV[3]) then
    return {'stale', marks[2] or '0'}
  end
end

-- The balances of a period that is listed are gone: charges are never taken back, and without them every plate looks new.
-- KEYS[2], KEYS[3]: the lists of periods and of spans.
local function lost(key)
  local period = string.sub(key, #KEYS[1] + 5) -- PREFIX:balance:PERIOD and PREFIX:meta
  if redis.call('EXISTS', key) == 0
    and (redis.call('SISMEMBER', KEYS[2], period) == 1 or redis.call('ZSCORE', KEYS[3], period)) then
    return {'lost', period}
  end
end

-- Does something with each chunk of a part of a list, given as arguments to it: Lua's stack takes so many at a time.
local CHUNK = 1000
local function by_chunk(list, first, last, work)
  for start = first, last, CHUNK do work(unpack(list, start, math.min(start + CHUNK - 1, last))) end
end

-- The balances of plates, 16 bytes each: the sum of a plate's charges and their number, zeros where there is none.
local NONE = string.rep('\0', 16)
local function balances_of(key, plates)
  local parts = {}
  by_chunk(plates, 1, #plates, function(...)
    local found = redis.call('HMGET', key, ...)
    for at = 1, #found do found[at] = found[at] or NONE end
    parts[#parts + 1] = table.concat(found)
  end)
  return table.concat(parts)
end

-- Plates of one width, one after the other, as a list.
local function cut(plates, width)
  local names = {}
  for at = 1, #plates / width do names[at] = string.sub(plates, width * (at - 1) + 1, width * at) end
  return names
end
