-- agree_on_policy: holds the digest of a policy, unless another one is held; repeatable.
-- KEYS   policy
-- ARGV   digest, holdMs
-- Output the held digest
redis.call('SET', K.policy, step.digest, 'NX', 'PX', step.holdMs)
local held = redis.call('GET', K.policy)
if held == step.digest then redis.call('PEXPIRE', K.policy, step.holdMs) end
return held
