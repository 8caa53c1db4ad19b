-- record_events: appends progress and output of a running call.
-- KEYS   op, tree, session <id>, log <id>, call <name>
-- ARGV   session, name, owner, epoch, count; bytes: event <1 to count>
-- Output "recorded" | "fenced"
local call = fields(K['call ' .. step.name], 'owner', 'epoch', 'ended', 'started')
if not fenced(call) or call.started ~= '1' then return answer('fenced') end
for index = 1, step.count do append(step.session, B['event ' .. index]) end
return commit('recorded')
