-- claim_call: takes over a call that is not started and that no living lease holds.
-- KEYS   op, tree, leases, call <name>
-- ARGV   name, owner, leaseMs
-- Output "nothing" | the call's fields and values
local key = K['call ' .. step.name]
local call = fields(key, 'started', 'lease', 'ended')
if not call.lease or call.ended or call.started == '1' or tonumber(call.lease) > now then return answer('nothing') end
redis.call('HINCRBY', key, 'epoch', 1)
redis.call('HINCRBY', key, 'version', 1)
redis.call('HSET', key, 'owner', step.owner, 'lease', now + step.leaseMs)
redis.call('ZADD', K.leases, now + step.leaseMs, step.name)
return commit(redis.call('HGETALL', key))
