-- record_read: remembers what the tree has read; by its nature it may be repeated.
-- KEYS   reads
-- ARGV   path, sha256
-- Output "recorded"
redis.call('HSET', K.reads, step.path, step.sha256)
keep(K.reads)
return answer('recorded')
