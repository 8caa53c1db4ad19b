-- resume_call: takes over a started call without an owner or a live lease; its start mark stays.
-- KEYS   op, tree, leases, call <name>
-- ARGV   name, owner, leaseMs
-- Output "nothing" | the fields and values of the call
local key = K['call ' .. step.name]
local call = fields(key, 'lease', 'owner', 'ended', 'started')
if call.started ~= '1' or call.ended then return answer('nothing') end
if call.owner ~= '' and tonumber(call.lease) > now then return answer('nothing') end
return take_over(key)
