-- change_record: stores or removes a record of a table, marks the table as changed, and notifies the other replicas; repeatable by
-- its mark.
-- KEYS   records, mark
-- ARGV   id, table, newMark, from, channel; bytes: record (absent: it is removed), before (absent: whatever is there; empty: nothing)
-- Output 1 if the table has changed, otherwise 0
if redis.call('GET', K.mark) == step.newMark then return 1 end
if B.before and (redis.call('HGET', K.records, step.id) or '') ~= B.before then return 0 end
local count
if B.record then
  redis.call('HSET', K.records, step.id, B.record)
  count = 1
else
  count = redis.call('HDEL', K.records, step.id)
  if count == 0 then return 0 end
end
redis.call('SET', K.mark, step.newMark)
redis.call('PUBLISH', step.channel, '["' .. step.from .. '",[],{"table":"' .. step.table .. '"}]')
return count
