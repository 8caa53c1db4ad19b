-- open_call: accepts a call under a lease.
-- KEYS   op, tree, session <id>, log <id>, calls, open, leases, call <name>
-- ARGV   session, callId, name, generation, owner, leaseMs, maxOpenCalls, spec; bytes: told <name>, and (where it starts
--        in the same step) told start, whole start
-- Output "opened", its first number, its last | "known" | "no session" | "closed" | "full" | "generation", the tree's
local call = K['call ' .. step.name]
local closed = redis.call('HGET', K['session ' .. step.session], 'closed')
if not closed then return answer({ 'no session' }) end
if redis.call('EXISTS', call) == 1 then return answer({ 'known' }) end
if tonumber(closed) > 0 then return answer({ 'closed' }) end
if redis.call('ZCARD', K.open) >= step.maxOpenCalls then return answer({ 'full' }) end
local generation = redis.call('HGET', K.tree, 'generation')
if tonumber(generation) ~= step.generation then return answer({ 'generation', generation }) end

local lease = now + step.leaseMs
local started = B['told start'] and 1 or 0
local seq = write_part(step.session, step.name)
local last = B['told start'] and write_part(step.session, step.name, 'start') or seq
redis.call('HSET', call, 'session', step.session, 'callId', step.callId, 'opened', seq, 'spec', step.spec, 'version', 1 + started,
  'epoch', 1, 'owner', step.owner, 'lease', lease, 'started', started, 'attempts', started, 'settled', 0, 'asks', '', 'waiting', '')
redis.call('ZADD', K.calls, seq, step.callId)
redis.call('ZADD', K.open, seq, step.callId)
redis.call('ZADD', K.leases, lease, step.name)
for _, key in ipairs({ call, K.calls, K.open, K.leases }) do keep(key) end
return commit({ 'opened', seq, last })
