-- renew_leases: renews one owner's leases on calls of a tree; repeatable.
-- KEYS   leases, call <name> of each call
-- ARGV   owner, leaseMs, names
-- Output the names of the calls that it still holds
local held = {}
for _, name in ipairs(step.names) do
  local key = K['call ' .. name]
  local call = fields(key, 'owner', 'ended')
  if call.owner == step.owner and not call.ended then
    redis.call('HSET', key, 'lease', now + step.leaseMs)
    redis.call('ZADD', K.leases, now + step.leaseMs, name)
    held[#held + 1] = name
  end
end
return answer(held)
