-- point_to: sets a pointer, unless it points somewhere else than was seen.
-- KEYS   pointer
-- ARGV   seen ("" for nowhere), target
-- Output where it points now
local target = redis.call('GET', K.pointer) or ''
if target == step.seen then
  redis.call('SET', K.pointer, step.target)
  target = step.target
end
redis.call('PEXPIRE', K.pointer, step.keepMs)
return target
