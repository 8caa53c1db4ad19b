-- raise_counter: raises the counter of the store, by which replicas find that it was restored.
-- KEYS   counter
-- Output the count
redis.call('HSET', K.counter, 'time', now)
return redis.call('HINCRBY', K.counter, 'count', 1)
