-- enter_listing: adds an id to one shard of a listing, behind all others; repeatable.
-- KEYS   shard
-- ARGV   id
-- Output the place of the id
redis.call('ZADD', K.shard, 'NX', micros, step.id)
return redis.call('ZSCORE', K.shard, step.id)
