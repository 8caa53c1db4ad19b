-- restart_call: takes back the start of a call whose body its worker has not entered.
-- KEYS   op, tree, leases, call <name>
-- ARGV   name, mark, queued ({ definitionId, until })
-- Output "restarted" | "refused"
local key = K['call ' .. step.name]
local call = fields(key, 'ended', 'started', 'remote', 'version', 'epoch', 'attempts')
local stored = run_of(call, step.mark)
if not stored or step.mark.connection < stored.connection then return answer('refused') end
redis.call('HSET', key, 'version', call.version + 1, 'epoch', call.epoch + 1, 'attempts', call.attempts - 1, 'started', 0,
  'owner', '', 'lease', now, 'queuedUntil', step.queued['until'], 'queuedFor', step.queued.definitionId)
redis.call('HDEL', key, 'remote')
redis.call('ZADD', K.leases, now, step.name)
return commit('restarted')
