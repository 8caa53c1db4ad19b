-- adopt_call: takes over a started call whose worker is connected to the replica, over a higher connection than the stored one.
-- KEYS   op, tree, leases, call <name>
-- ARGV   name, owner, leaseMs, mark, remote (the mark as JSON)
-- Output "nothing" | the fields and values of the call
local key = K['call ' .. step.name]
local call = fields(key, 'ended', 'started', 'remote')
local stored = run_of(call, step.mark)
if not stored or step.mark.connection <= stored.connection then return answer('nothing') end
return take_over(key, 'remote', step.remote)
