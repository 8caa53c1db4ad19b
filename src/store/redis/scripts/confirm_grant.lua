-- confirm_grant: lets a grant serve again that a restore suspended.
-- KEYS   grants, confirmed, users
-- ARGV   id
-- Output { time of the confirmation, users }
if redis.call('HEXISTS', K.grants, step.id) == 1 then redis.call('HSET', K.confirmed, step.id, now) end
return { now, redis.call('SMEMBERS', K.users) }
