-- read_asks_of_call: all asks that a call has ever opened, as they are at one moment.
-- KEYS   call, asked, settled
-- Output the call's fields and values, then for each ask its event and how it was settled (or "")
local found = { redis.call('HGETALL', KEYS[1]) }
for id in string.gmatch(redis.call('HGET', KEYS[1], 'asks') or '', '%S+') do
  found[#found + 1] = { redis.call('HGET', KEYS[2], id) or '', redis.call('HGET', KEYS[3], id) or '' }
end
return found
