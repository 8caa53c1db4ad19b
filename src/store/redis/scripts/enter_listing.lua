-- enter_listing: adds an id to one shard of a list, behind all that are there; by its nature it may be repeated.
-- KEYS   shard
-- ARGV   id
-- Output its place
redis.call('ZADD', K.shard, 'NX', micros, step.id)
return redis.call('ZSCORE', K.shard, step.id)
