-- adopt_grant: adds a tree to the users of a live grant.
-- KEYS   grants, revoked, used, users
-- ARGV   id, root, expires (0: never), inTree
-- Output "adopted" | "dead"
if redis.call('HEXISTS', K.grants, step.id) == 0 or redis.call('HEXISTS', K.revoked, step.id) == 1 then
  return answer('dead')
end
if step.expires > 0 and step.expires <= now then return answer('dead') end
redis.call('SADD', K.users, step.root)
redis.call('HSET', K.used, step.id, now)
return answer('adopted')
