-- Keep the first payload of each release id, all of a call or none of it.
-- KEYS: marks, recorded (a counter), unpublished, then admission and release of each id.
-- ARGV: as the guard, then id and payload of each release; last, when the slot of each ends.
-- Answers 1 where the payload given stands, else the one that does.

local refused = gone()
if refused then return refused end

local count = (#KEYS - 3) / 2
local answers = {}
local fresh = {}

-- Everything is looked at before anything is kept.
for i = 1, count do
  local payload = redis.call('GET', KEYS[3 + 2 * i])
  if payload then
    answers[i] = payload
  elseif redis.call('EXISTS', KEYS[2 + 2 * i]) == 0 then
    return {'unadmitted', i}
  else
    refused = archived(ARGV[#ARGV], i, ARGV[2 + 2 * i])
    if refused then return refused end
    fresh[#fresh + 1] = i
  end
end
-- A former owner may still read what stands; it may add nothing.
if #fresh > 0 then
  refused = stale()
  if refused then return refused end
end

for _, i in ipairs(fresh) do
  if redis.call('SETNX', KEYS[3 + 2 * i], ARGV[3 + 2 * i]) == 1 then
    redis.call('ZADD', KEYS[3], redis.call('INCR', KEYS[2]), ARGV[2 + 2 * i])
    answers[i] = 1
  else  -- the same id twice in this call
    answers[i] = redis.call('GET', KEYS[3 + 2 * i])
  end
end
return {'ok', answers}
