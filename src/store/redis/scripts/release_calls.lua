-- release_calls: ends one owner's leases on calls of a tree that are not started; repeatable.
-- KEYS   leases, call <name> of each call
-- ARGV   owner, names
-- Output the names of the released calls
local released = {}
for _, name in ipairs(step.names) do
  local key = K['call ' .. name]
  local call = fields(key, 'owner', 'ended', 'started')
  if call.owner == step.owner and call.started == '0' and not call.ended then
    redis.call('HSET', key, 'owner', '', 'lease', now)
    redis.call('ZADD', K.leases, now, name)
    released[#released + 1] = name
  end
end
return answer(released)
