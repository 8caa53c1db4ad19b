-- claim_call: takes over a call without an owner or a live lease whose body may be entered once more.
-- KEYS   op, tree, leases, call <name>
-- ARGV   name, owner, leaseMs, maxAttempts
-- Output "nothing" | the fields and values of the call
local key = K['call ' .. step.name]
local call = fields(key, 'attempts', 'lease', 'owner', 'ended', 'remote')
if not call.lease or call.ended then return answer('nothing') end
if call.owner ~= '' and tonumber(call.lease) > now then return answer('nothing') end
-- The worker may still come back to the body.
if call.remote and tonumber(call.lease) + cjson.decode(call.remote).resumeMs > now then return answer('nothing') end
if tonumber(call.attempts) >= step.maxAttempts then return answer('nothing') end
if call.remote then redis.call('HDEL', key, 'remote') end
return take_over(key, 'started', 0)
