-- shift_tree: moves the deadlines of asks and the leases of a tree with the time of the store, once for each adoption of a clock.
-- KEYS   tree, deadlines, leases, asked, call <name> of each call
-- ARGV   adoption, by, calls (names), asks (ids); bytes: asked <id>
-- Output "shifted"
if redis.call('HGET', K.tree, 'shifted') == step.adoption then return answer('shifted') end
for _, id in ipairs(step.asks) do
  if redis.call('ZSCORE', K.deadlines, id) then
    redis.call('ZINCRBY', K.deadlines, step.by, id)
    redis.call('HSET', K.asked, id, B['asked ' .. id])
  end
end
for _, name in ipairs(step.calls) do
  local lease = redis.call('HGET', K['call ' .. name], 'lease')
  if lease and redis.call('ZSCORE', K.leases, name) then
    redis.call('HSET', K['call ' .. name], 'lease', lease + step.by)
    redis.call('ZADD', K.leases, lease + step.by, name)
  end
end
redis.call('HSET', K.tree, 'shifted', step.adoption)
return answer('shifted')
