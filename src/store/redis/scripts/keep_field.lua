-- keep_field: sets a field of a hash that lives as long as its tree; repeatable.
-- KEYS   hash
-- ARGV   field, value
-- Output "kept"
redis.call('HSET', K.hash, step.field, step.value)
return answer('kept')
