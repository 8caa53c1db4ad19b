-- point_to: sets a pointer, unless its target is no longer the one that was seen.
-- KEYS   pointer
-- ARGV   seen ("": no target), target
-- Output the target afterwards
local target = redis.call('GET', K.pointer) or ''
if target == step.seen then
  redis.call('SET', K.pointer, step.target)
  target = step.target
end
redis.call('PEXPIRE', K.pointer, step.keepMs)
return target
