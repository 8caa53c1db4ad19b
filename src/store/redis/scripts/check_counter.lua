-- check_counter: compares the counter of the store with what a replica knows; if it went back, the store was restored, and all of its
-- shards may have lost work. Repeated until the store has another id.
-- KEYS   counter, generations
-- ARGV   known (the count that the store has at least), shards
-- Output { "back" | "on", time of the last restore or 0, shard, generation, ... }
local counter = fields(K.counter, 'count', 'restored')
local is_back = tonumber(counter.count or 0) < step.known
if is_back then
  for _, shard in ipairs(step.shards) do redis.call('HINCRBY', K.generations, shard, 1) end
  redis.call('HSET', K.counter, 'restored', now)
  counter.restored = now
end
return { is_back and 'back' or 'on', tostring(counter.restored or 0), unpack(redis.call('HGETALL', K.generations)) }
