-- read_hashes: several hashes of one slot, as they are at one moment.
-- KEYS   1, 2, ...
-- ARGV   count
-- Output for each its fields and values
local found = {}
for index = 1, step.count do found[index] = redis.call('HGETALL', K[tostring(index)]) end
return found
