-- revoke_grant: marks a grant dead; the first revocation sets the time.
-- KEYS   grants, revoked, used, users
-- ARGV   id, inTree
-- Output { time of the revocation, users }
if redis.call('HEXISTS', K.grants, step.id) == 1 then redis.call('HSETNX', K.revoked, step.id, now) end
return { redis.call('HGET', K.revoked, step.id) or 0, redis.call('SMEMBERS', K.users) }
