-- read_hashes: reads hashes of one slot, as one snapshot.
-- KEYS   the hashes
-- Output for each hash its fields and values
local found = {}
for index, key in ipairs(KEYS) do found[index] = redis.call('HGETALL', key) end
return found
