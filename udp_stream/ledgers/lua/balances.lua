-- The balances of plates in each of some periods.
-- KEYS: marks, then balances of each period. ARGV: as the guard; bytes of a plate; the plates, one after the other.

local refused = gone()
if refused then return refused end
local names, answers = cut(ARGV[5], tonumber(ARGV[4])), {}
for i = 2, #KEYS do answers[i - 1] = balances_of(KEYS[i], names) end
return {'ok', answers}
