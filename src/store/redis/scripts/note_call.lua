-- note_call: replaces the hook state of a call, and records decisions made during its run. Emits no event.
-- KEYS   op, tree, call <name>
-- ARGV   name, owner, epoch, hooked (where it changes)
-- Output "noted" | "refused"
local key = K['call ' .. step.name]
if not fenced(fields(key, 'owner', 'epoch', 'ended')) then return answer('refused') end
if step.hooked then redis.call('HSET', key, 'hooked', step.hooked) end
return commit('noted')
