-- read_asks: reads asks with their calls, as one snapshot.
-- KEYS   asked, settled, callOf
-- ARGV   prefix of the keys of the tree's calls, ids of the asks. The script builds the key of a call, since only callOf has
--        its name; the key has the same hash tag as the others.
-- Output for each ask its event, its settlement (or ""), and the fields and values of its call
local found = {}
for index = 2, #ARGV do
  local id = ARGV[index]
  local name = redis.call('HGET', KEYS[3], id)
  found[index - 1] = {
    redis.call('HGET', KEYS[1], id) or '',
    redis.call('HGET', KEYS[2], id) or '',
    name and redis.call('HGETALL', ARGV[1] .. name) or {},
  }
end
return found
