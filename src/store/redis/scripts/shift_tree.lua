-- shift_tree: moves the deadlines of asks, the leases and the notices of a tree with the time of the store, once for each adoption of a clock.
-- KEYS   tree, deadlines, leases, notices, noticeDue, asked, call <name> of each call
-- ARGV   adoption, by, calls (names), asks (ids); bytes: asked <id>
-- Output "shifted"
if redis.call('HGET', K.tree, 'shifted') == step.adoption then return answer('shifted') end
for _, id in ipairs(step.asks) do
  if redis.call('ZSCORE', K.deadlines, id) then
    redis.call('ZINCRBY', K.deadlines, step.by, id)
    redis.call('ZADD', K.deadlines, 'XX', 'INCR', step.by, id .. ' escalates')
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
for _, member in ipairs(redis.call('ZRANGE', K.noticeDue, 0, -1)) do
  local notice = cjson.decode(redis.call('HGET', K.notices, member))
  notice.at, notice.lease = notice.at + step.by, notice.lease == 0 and 0 or notice.lease + step.by
  write_notice(member, notice)
end
redis.call('HSET', K.tree, 'shifted', step.adoption)
return answer('shifted')
