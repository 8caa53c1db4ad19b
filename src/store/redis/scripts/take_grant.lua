-- take_grant: takes a use of a grant with a limit for a call, which has one at most.
-- KEYS   grants, uses, used
-- ARGV   id, times, use
-- Output "taken" | "used up"
local names = with_use(step)
if not names then return answer('used up') end
redis.call('HSET', K.uses, step.id, names)
redis.call('HSET', K.used, step.id, now)
return answer('taken')
