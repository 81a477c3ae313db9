-- Some HATs ask to charge their plates, one after the other. Each: remembered before; else fenced; else decided. What
-- they charge, and what is to be remembered of them, is kept at the end, all of it at once.
-- KEYS: marks, order, periods (of rolling budgets: spans), balances of the period, then the admission of each HAT, then
--       of a rolling budget the balances of the other spans that share a window with ours.
-- ARGV: as the guard; period; budget; the plates of all HATs, each once, one after the other; bytes of a plate; what
--       all HATs together ask of each of these plates, and in how many it is; the least allowance of all, or ''; then of
--       each HAT: release id; least number admitted; what to remember before the amounts (head); plates, one after the
--       other; where these stand among all, from 1 on; charges; allowances, or ''. Places are of 4 bytes each, charges
--       and allowances of 8, little endian.
--       At the end, of a rolling budget, else '': two names between which all spans near by are; those that the caller
--       has found there, without ours; the others, whose balances are in KEYS; a line each. The windows, one after the
--       other: for each of the others 1 or 0. Last, when the slot of each HAT ends.
-- Answers for each HAT 'new' and its amounts charged (0: HALT), or 'known' and what is remembered of it: head, amounts,
-- plates. A balance is two integers of 8 bytes: the sum of its charges, and their number.

local refused = gone()
if refused then return refused end

local period, budget = ARGV[4], tonumber(ARGV[5])
local first, last, listing, others, windows, ends = unpack(ARGV, #ARGV - 5)
local HEAD, EACH = 10, 7 -- arguments before the HATs, and of each
local rolls, hats = first ~= '', (#ARGV - HEAD - 6) / EACH
local CHUNK = 1000 -- values that Lua's stack takes at a time
local HALT = string.rep('\0', 8)
local sub, pack, unpacked = string.sub, struct.pack, struct.unpack

-- Does something with each chunk of a list, given as arguments to it.
local function by_chunk(list, work)
  for start = 1, #list, CHUNK do
    work(start, unpack(list, start, math.min(start + CHUNK - 1, #list)))
  end
end

local function names_of(lines)
  local names = {}
  for name in string.gmatch(lines, '[^\n]+') do names[#names + 1] = name end
  return names
end
local beside = names_of(others) -- the other spans that share a window with ours
local inside = {} -- of each window, which of these it touches
for start = 0, #windows - 1, math.max(#beside, 1) do
  local touched = {}
  for i = 1, #beside do
    if sub(windows, start + i, start + i) == '1' then touched[#touched + 1] = i end
  end
  inside[#inside + 1] = touched
end

-- Why the windows are not what the caller takes them for.
local function unfit_windows()
  local there = {}
  for _, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[3], '[' .. first, '[' .. last)) do
    if name ~= period then there[#there + 1] = name end
  end
  -- A span that others have charged in since the caller looked: its balances are not among KEYS, where a cluster
  -- wants them. The caller looks again.
  if table.concat(there, '\n') ~= listing then return {'moved'} end
  for i, name in ipairs(beside) do
    if redis.call('EXISTS', KEYS[4 + hats + i]) == 0 then return {'lost', name} end
  end
end

local first_of_period
-- Why nobody may be charged; looked at before the first HAT that is new.
local function unfit()
  if first_of_period ~= nil then return end
  first_of_period = redis.call('HLEN', KEYS[4]) == 0
  local listed = rolls and redis.call('ZSCORE', KEYS[3], period)
  if not rolls then listed = redis.call('SISMEMBER', KEYS[3], period) == 1 end
  -- Charges are never taken back, so a period that is listed has balances. Without them every plate looked new.
  if first_of_period and listed then
    return {'lost', period}
  end
  if rolls then return unfit_windows() end
end

local width, names = tonumber(ARGV[7]), {} -- of all plates, which the HATs name by their place here
local function read_names()
  for start = 1, #ARGV[6], width do names[#names + 1] = sub(ARGV[6], start, start + width - 1) end
end

local elsewhere = {} -- of each plate, the most that it was charged in the other spans of a window
local function look_elsewhere()
  local amounts = {}
  for i = 1, #beside do
    amounts[i] = {}
    by_chunk(names, function(start, ...)
      for at, balance in ipairs(redis.call('HMGET', KEYS[4 + hats + i], ...)) do
        amounts[i][start + at - 1] = balance and unpacked('<i8', balance) or 0
      end
    end)
  end
  for at = 1, #names do
    local most = 0
    for _, touched in ipairs(inside) do
      local sum = 0 -- exact: a window's sum was within a budget
      for k = 1, #touched do sum = sum + amounts[touched[k]][at] end
      most = math.max(most, sum)
    end
    elsewhere[at] = most
  end
end

local sums = {} -- of each plate's charges, these ones included, and those elsewhere
local times, now = {}, {} -- how many charges it had before, and has had in this call
-- Looked up before the first HAT that is new.
local function look_up()
  if #names > 0 then return end
  read_names()
  by_chunk(names, function(start, ...)
    for i, balance in ipairs(redis.call('HMGET', KEYS[4], ...)) do
      local at = start + i - 1
      sums[at], times[at], now[at] = 0, 0, 0
      if balance then sums[at], times[at] = unpacked('<i8i8', balance) end
    end
  end)
  if rolls then
    look_elsewhere()
    for at = 1, #names do sums[at] = sums[at] + elsewhere[at] end
  end
end

local formats = {} -- by kind and number
local function format_of(kind, count)
  local key = kind .. count
  local format = formats[key] or '<' .. string.rep(kind, count)
  formats[key] = format
  return format
end

local function numbers_in(bytes, kind, size, count)
  local numbers = {}
  for start = 1, count, CHUNK do
    local some = math.min(CHUNK, count - start + 1)
    local found = {unpacked(format_of(kind, some), bytes, size * (start - 1) + 1)}
    if count <= CHUNK then return found end
    for i = 1, some do numbers[start + i - 1] = found[i] end
  end
  return numbers
end

-- Charge the plates with enough budget left, unless they are too few.
local function decide(places, charges, least, allowances)
  local count = #charges / 8
  local at, asked = numbers_in(places, 'I4', 4, count), numbers_in(charges, 'i8', 8, count)
  local most = allowances ~= '' and numbers_in(allowances, 'i8', 8, count)
  look_up()
  local limit, halted, out = budget, {}, 0 -- only who is out is noted: mostly nobody is
  for i = 1, count do
    if most then limit = math.min(budget, most[i]) end
    if not (asked[i] <= limit - sums[at[i]]) then halted[i], out = true, out + 1 end -- exact: all are below 2^53
  end
  -- Decided for all plates before any is charged: too few pay nothing.
  if count - out < least then return string.rep(HALT, count) end
  for i = 1, count do
    if not halted[i] then
      local place = at[i]
      sums[place], now[place] = sums[place] + asked[i], now[place] + 1
    end
  end
  if out == 0 then return charges end
  local amounts = {}
  for i = 1, count do amounts[i] = halted[i] and HALT or sub(charges, 8 * i - 7, 8 * i) end
  return table.concat(amounts)
end

-- Charge all HATs at once, if all are new and each of their plates has enough budget left for all of them: then it has
-- for each, in any order. Whether that was done; nearly always it can be.
local function charge_all()
  local seen, known = {}, 0
  for hat = 1, hats do
    local release_id, least, _, _, _, charges = unpack(ARGV, EACH * (hat - 1) + HEAD + 1, EACH * hat + HEAD)
    local count = #charges / 8
    if seen[release_id] or (count > 0 and count < tonumber(least)) then return false end
    seen[release_id] = true
  end
  for start = 5, 4 + hats, CHUNK do
    known = known + redis.call('EXISTS', unpack(KEYS, start, math.min(start + CHUNK - 1, 4 + hats)))
  end
  if known > 0 then return false end
  look_up()
  local limit = math.min(budget, tonumber(ARGV[10]) or budget)
  local asked, hats_of = numbers_in(ARGV[8], 'i8', 8, #names), numbers_in(ARGV[9], 'I4', 4, #names)
  for at = 1, #names do
    if not (asked[at] <= limit - sums[at]) then return false end
  end
  for at = 1, #names do sums[at], now[at] = sums[at] + asked[at], hats_of[at] end
  return true
end

local answers, ids, all_pay = {}, {}, nil
local memory, memories = {}, {} -- by id; key, memory, key, memory...
for hat = 1, hats do
  local release_id, least, head, plates, places, charges, allowances =
    unpack(ARGV, EACH * (hat - 1) + HEAD + 1, EACH * hat + HEAD)
  -- A repeat is answered before fence and windows are looked at: it charges nothing, and its answer stands for ever.
  -- `memory` comes first, as the same id may be in this call twice and nothing is kept yet.
  local known = memory[release_id] or redis.call('GET', KEYS[4 + hat])
  if known then
    answers[hat] = {'known', known}
  else
    refused = stale() or unfit() or archived(ends, hat, release_id)
    if refused then return refused end
    if all_pay == nil then all_pay = charge_all() end
    local amounts = all_pay and charges or decide(places, charges, tonumber(least), allowances)
    answers[hat] = {'new', amounts}
    ids[#ids + 1] = release_id
    memory[release_id] = head .. amounts .. plates
    memories[#memories + 1] = KEYS[4 + hat]
    memories[#memories + 1] = memory[release_id]
  end
end

-- Redis undoes nothing of a script that fails halfway. So all that can be refused was, and only writes are left.
local balances = {}
for place = 1, #sums do
  if now[place] > 0 then
    balances[#balances + 1] = names[place]
    -- What was charged elsewhere counts against the budget, and belongs to the balances of the other spans.
    balances[#balances + 1] = pack('<i8i8', sums[place] - (elsewhere[place] or 0), times[place] + now[place])
  end
end
by_chunk(balances, function(_, ...) redis.call('HSET', KEYS[4], ...) end)
if first_of_period and #balances > 0 then
  if rolls then redis.call('ZADD', KEYS[3], 0, period) else redis.call('SADD', KEYS[3], period) end
end
by_chunk(memories, function(_, ...) redis.call('MSET', ...) end)
if #ids > 0 then -- counted apart from the list, whose oldest entries may be moved away
  local admitted = redis.call('HGET', KEYS[1], 'admitted') or redis.call('LLEN', KEYS[2])
  redis.call('HSET', KEYS[1], 'admitted', string.format('%d', admitted + #ids))
end
by_chunk(ids, function(_, ...) redis.call('RPUSH', KEYS[2], ...) end)
return {'ok', answers}
