-- note_call: keeps what hooks said of a call, and what was decided while it runs. Nobody is told.
-- KEYS   op, tree, call <name>
-- ARGV   name, owner, epoch; hooked (where hooks said something)
-- Output "noted" | "refused"
local key = K['call ' .. step.name]
if not fenced(fields(key, 'owner', 'epoch', 'ended')) then return answer('refused') end
if step.hooked then redis.call('HSET', key, 'hooked', step.hooked) end
return commit('noted')
