-- claim_export: takes the lease of a receiver of the audit, or renews it; repeatable.
-- KEYS   receiver
-- ARGV   owner, leaseMs
-- Output "claimed" | "held"
local held = fields(K.receiver, 'owner', 'lease')
if held.owner and held.owner ~= step.owner and tonumber(held.lease) > now then return answer('held') end
redis.call('HSET', K.receiver, 'owner', step.owner, 'lease', now + step.leaseMs)
return answer('claimed')
