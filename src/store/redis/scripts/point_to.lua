-- point_to: sets a pointer, unless its target is no longer the one that was seen.
-- KEYS   pointer
-- ARGV   seen ("": no target), target, keepMs (where it is removed unless its target is created)
-- Output the target afterwards
local target = redis.call('GET', K.pointer) or ''
if target == step.seen then
  redis.call('SET', K.pointer, step.target)
  if step.keepMs then redis.call('PEXPIRE', K.pointer, step.keepMs) end
  target = step.target
end
return target
