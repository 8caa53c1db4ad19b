-- agree_on_format: raises the format of the store to the one of this replica, unless replicas of an earlier one run; repeatable.
-- KEYS   format, policy (held while replicas run)
-- ARGV   format, version
-- Output { format, the version that raised it, ms for which replicas of an earlier format are taken to run }
if redis.call('TYPE', K.format).ok == 'string' then return { 1, '', redis.call('PTTL', K.format) } end
local stored = fields(K.format, 'format', 'version')
if stored.format then
  if tonumber(stored.format) >= step.format then return { tonumber(stored.format), stored.version, 0 } end
  local held = redis.call('PTTL', K.policy)
  if held > 0 then return { tonumber(stored.format), stored.version, held } end
end
redis.call('HSET', K.format, 'format', step.format, 'version', step.version)
return { step.format, step.version, 0 }
