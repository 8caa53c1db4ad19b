-- read_requests: reads the requests of asks, without their calls.
-- KEYS   asked and settled of each tree
-- ARGV   for each tree the number of its asks, and their ids
-- Output for each ask its event; none or "" if it is settled or was removed
local found, at = {}, 1
for index = 1, #KEYS, 2 do
  local last = at + ARGV[at]
  local events = redis.call('HMGET', KEYS[index], unpack(ARGV, at + 1, last))
  local ends = redis.call('HMGET', KEYS[index + 1], unpack(ARGV, at + 1, last))
  for ask, ended in ipairs(ends) do
    found[#found + 1] = (ended or '') == '' and events[ask]
  end
  at = last + 1
end
return found
