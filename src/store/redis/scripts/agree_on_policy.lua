-- agree_on_policy: holds the policy that the replicas judge by, unless another one is held; it may be repeated.
-- KEYS   policy
-- ARGV   digest, holdMs
-- Output the digest that is held
redis.call('SET', K.policy, step.digest, 'NX', 'PX', step.holdMs)
local held = redis.call('GET', K.policy)
if held == step.digest then redis.call('PEXPIRE', K.policy, step.holdMs) end
return held
