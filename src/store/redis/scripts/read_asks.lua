-- read_asks: asks with their calls, as they are at one moment.
-- KEYS   asked, settled, callOf
-- ARGV   what the keys of the tree's calls begin with, the ids. A call's key is made here, since only callOf knows its
--        name; it has the hash tag of the others.
-- Output for each ask its event, how it was settled (or ""), and the fields and values of its call
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
