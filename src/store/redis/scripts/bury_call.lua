-- bury_call: replaces an ended call by its tombstone; repeatable.
-- KEYS   call, asked, settled, callOf, notices, noticeDue, notified
-- ARGV   before; bytes: tombstone
-- Output "buried" | "nothing"
local key = K.call
local call = fields(key, 'ended', 'expired', 'asks', 'assignment')
if not call.ended or tonumber(call.ended) > step.before or call.expired then return answer('nothing') end
for _, id in ipairs(words(call.asks)) do
  local targets = redis.call('HGET', K.notified, id)
  for _, target in ipairs(targets and cjson.decode(targets) or {}) do
    redis.call('HDEL', K.notices, id .. ' ' .. target)
    redis.call('ZREM', K.noticeDue, id .. ' ' .. target)
  end
  if targets then redis.call('HDEL', K.notified, id) end
  for _, each in ipairs({ K.asked, K.settled, K.callOf }) do redis.call('HDEL', each, id) end
end
if call.assignment then redis.call('HDEL', K.callOf, call.assignment) end
redis.call('HDEL', key, 'op')
redis.call('HSET', key, 'part', B.tombstone, 'expired', 1, 'asks', '')
return answer('buried')
