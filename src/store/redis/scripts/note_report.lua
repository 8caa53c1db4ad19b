-- note_report: records the late report of a delegated call that has ended. Emits no event.
-- KEYS   op, tree, call <name>
-- ARGV   name
-- Output "noted" | "refused"
local key = K['call ' .. step.name]
local call = fields(key, 'ended', 'expired')
if not call.ended or call.expired then return answer('refused') end
if redis.call('HSETNX', key, 'reported', 1) == 0 then return answer('refused') end
return commit('noted')
