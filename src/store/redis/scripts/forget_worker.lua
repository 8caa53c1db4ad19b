-- forget_worker: removes a worker process, unless it has connected again, or to another replica; repeatable.
-- KEYS   workers
-- ARGV   id, replica, connection
-- Output "forgotten" | "kept"
local stored = redis.call('HGET', K.workers, step.id)
local connection, replica = string.match(stored or '', '^(%d+) (%S+) ')
if tonumber(connection) ~= step.connection or replica ~= step.replica then return 'kept' end
redis.call('HDEL', K.workers, step.id)
return 'forgotten'
