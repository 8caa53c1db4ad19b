-- set_store_id: changes the store id in the shard that decides on it, unless somebody else did.
-- KEYS   id
-- ARGV   seen ("" for none), id
-- Output what it is now
if (redis.call('GET', K.id) or '') == step.seen then redis.call('SET', K.id, step.id) end
return redis.call('GET', K.id)
