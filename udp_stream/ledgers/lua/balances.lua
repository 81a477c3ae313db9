-- The balances of plates in each of some periods.
-- KEYS: marks, periods, spans, then balances of each period. ARGV: as the guard; bytes of a plate; the plates, one after
-- the other.

local refused = gone()
for i = 4, #KEYS do refused = refused or lost(KEYS[i]) end
if refused then return refused end
local names, answers = cut(ARGV[5], tonumber(ARGV[4])), {}
for i = 4, #KEYS do answers[i - 3] = balances_of(KEYS[i], names) end
return {'ok', answers}
