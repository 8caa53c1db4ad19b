-- read_asks: asks with their calls, as they are at one moment.
-- KEYS   asked, settled, call <name> of their calls
-- ARGV   ids, names; or of, the name of a call: all of its asks
-- Output for each ask its event and how it was settled (or ""), then for each call its fields and values
local found = {}
for index, id in ipairs(step.ids or words(redis.call('HGET', K['call ' .. step.of], 'asks'))) do
  found[index] = { redis.call('HGET', K.asked, id) or '', redis.call('HGET', K.settled, id) or '' }
end
for _, name in ipairs(step.names or { step.of }) do found[#found + 1] = redis.call('HGETALL', K['call ' .. name]) end
return found
