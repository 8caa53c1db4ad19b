-- park_call: ends the lease of a started call that waits for open children, or is to be resumed at once (dueMs 0).
-- KEYS   op, tree, leases, call <name>
-- ARGV   name, owner, epoch, dueMs
-- Output "parked" | "refused"
local key = K['call ' .. step.name]
local call = fields(key, 'owner', 'epoch', 'ended', 'started', 'version', 'children')
if not fenced(call) or call.started ~= '1' then return answer('refused') end
if step.dueMs > 0 and tonumber(call.children or 0) == 0 then return answer('refused') end
redis.call('HSET', key, 'version', call.version + 1, 'owner', '', 'lease', now + step.dueMs)
redis.call('ZADD', K.leases, now + step.dueMs, step.name)
return commit('parked')
