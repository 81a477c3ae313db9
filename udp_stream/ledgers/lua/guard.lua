-- Put before every script that writes: what it must not go on without.
-- KEYS[1]: the ledger's marks. ARGV[1]: the ledger's id; ARGV[2], ARGV[3]: the caller's shard and epoch, or '' and ''.

local marks = redis.call('HMGET', KEYS[1], 'ledger_id', 'epoch:' .. ARGV[2])

-- The ledger we opened is not here any more: flushed, or another one in its place.
local function gone()
  if marks[1] ~= ARGV[1] then return {'gone'} end
end

-- Another worker has taken a later epoch of this shard, or the ledger has forgotten ours.
local function stale()
  if ARGV[2] ~= '' and tonumber(marks[2] or 0) ~= tonumber(ARGV[3]) then
    return {'stale', marks[2] or '0'}
  end
end
