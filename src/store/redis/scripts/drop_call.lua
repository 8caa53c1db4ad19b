-- drop_call: removes a tombstone; repeatable.
-- KEYS   call, calls, ended
-- ARGV   name, callId, before
-- Output "dropped" | "nothing"
local ended = redis.call('HGET', K.call, 'ended')
if ended and tonumber(ended) > step.before then return answer('nothing') end
redis.call('DEL', K.call)
redis.call('ZREM', K.calls, step.callId)
redis.call('ZREM', K.ended, step.name)
return answer('dropped')
