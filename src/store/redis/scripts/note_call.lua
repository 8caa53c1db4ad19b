-- note_call: replaces the hook state or memo of a call, and records decisions made during its run. Emits no event.
-- KEYS   op, tree, call <name>
-- ARGV   name, owner, epoch, hooked and memo (where they change)
-- Output "noted" | "refused"
local key = K['call ' .. step.name]
if not fenced(fields(key, 'owner', 'epoch', 'ended')) then return answer('refused') end
if step.hooked then redis.call('HSET', key, 'hooked', step.hooked) end
if step.memo then redis.call('HSET', key, 'memo', step.memo) end
return commit('noted')
