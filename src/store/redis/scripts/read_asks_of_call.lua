-- read_asks_of_call: reads all asks that a call has opened, as one snapshot.
-- KEYS   call, asked, settled
-- Output the fields and values of the call, then for each ask its event and its settlement (or "")
local found = { redis.call('HGETALL', KEYS[1]) }
for id in string.gmatch(redis.call('HGET', KEYS[1], 'asks') or '', '%S+') do
  found[#found + 1] = { redis.call('HGET', KEYS[2], id) or '', redis.call('HGET', KEYS[3], id) or '' }
end
return found
