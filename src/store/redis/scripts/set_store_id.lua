-- set_store_id: sets the store id of the deciding shard, unless another replica has changed it.
-- KEYS   id
-- ARGV   seen ("": none), id
-- Output the store id afterwards
if (redis.call('GET', K.id) or '') == step.seen then redis.call('SET', K.id, step.id) end
return redis.call('GET', K.id)
