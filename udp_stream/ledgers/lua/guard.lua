-- Put before every script that writes: what it must not go on without.
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
