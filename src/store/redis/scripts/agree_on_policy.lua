-- agree_on_policy: holds the digest of a policy; a start or a reload replaces another one, others only renew their own; repeatable.
-- KEYS   policy, replaced
-- ARGV   digest, takes ("start" | "reload", where it may replace another one), holdMs, replacedMs
-- Output the held digest
local held = redis.call('GET', K.policy)
if held and held ~= step.digest then
  local replaced = redis.call('ZSCORE', K.replaced, step.digest)
  local is_recent = replaced and tonumber(replaced) + step.replacedMs > now
  -- A replica with former rules that starts again, such as one that an update has not reached, does not take them back.
  if not step.takes or (step.takes == 'start' and is_recent) then return held end
  redis.call('ZADD', K.replaced, now, held)
  redis.call('ZREM', K.replaced, step.digest)
  redis.call('PEXPIRE', K.replaced, step.replacedMs)
end
redis.call('SET', K.policy, step.digest, 'PX', step.holdMs)
return step.digest
