-- read_hashes: several hashes of one slot, as they are at one moment.
-- KEYS   the hashes
-- Output for each its fields and values
local found = {}
for index, key in ipairs(KEYS) do found[index] = redis.call('HGETALL', key) end
return found
