-- note_export: moves the cursors of a receiver of the audit, and drops chains from the list of pending ones that had no more records;
-- repeatable.
-- KEYS   receiver, cursors, pending
-- ARGV   owner, moved (root, "seq hash", ...), ended (roots), before (a chain that was listed later stays)
-- Output "noted" | "lost"
if redis.call('HGET', K.receiver, 'owner') ~= step.owner then return answer('lost') end
for index = 1, #step.moved, 2 do redis.call('HSET', K.cursors, step.moved[index], step.moved[index + 1]) end
for _, root in ipairs(step.ended) do
  local listed = redis.call('ZSCORE', K.pending, root)
  if listed and tonumber(listed) <= step.before then redis.call('ZREM', K.pending, root) end
end
return answer('noted')
