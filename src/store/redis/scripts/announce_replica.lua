-- announce_replica: registers a replica that acknowledges writes, and repeats the generations that it knows; repeatable.
-- KEYS   generations, replicas
-- ARGV   replica, known (shard -> generation)
-- Output { shard, generation, ... }
for shard, generation in pairs(step.known) do
  if tonumber(redis.call('HGET', K.generations, shard) or 0) < generation then
    redis.call('HSET', K.generations, shard, generation)
  end
end
redis.call('ZADD', K.replicas, now, step.replica)
redis.call('ZREMRANGEBYSCORE', K.replicas, '-inf', now - 86400000)
return redis.call('HGETALL', K.generations)
