-- read_call_of_ask: reads the call of an ask with all asks that it has opened, as one snapshot.
-- KEYS   asked, settled, callOf
-- ARGV   prefix of the keys of the tree's calls, id of the ask; see read_asks for the key that the script builds
-- Output the fields and values of the call, then for each ask its event and its settlement (or ""); { } if there is no such ask
local name = redis.call('HGET', KEYS[3], ARGV[2])
if not name then return {} end
local key = ARGV[1] .. name
local found = { redis.call('HGETALL', key) }
for id in string.gmatch(redis.call('HGET', key, 'asks') or '', '%S+') do
  found[#found + 1] = { redis.call('HGET', KEYS[1], id) or '', redis.call('HGET', KEYS[2], id) or '' }
end
return found
