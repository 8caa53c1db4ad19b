-- read_live: lists live trees.
-- KEYS   live of some shards
-- Output the entries of all of them
local found = {}
for _, key in ipairs(KEYS) do
  for _, entry in ipairs(redis.call('ZRANGE', key, 0, -1)) do found[#found + 1] = entry end
end
return found
