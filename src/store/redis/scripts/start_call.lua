-- start_call: writes the start mark.
-- KEYS   tree, leases, callOf, grants, used, uses, session <id>, log <id>, call <name>
-- ARGV   history, session, name, owner, epoch, version, rulesVersion (where grants were consulted), grantIds, counted ({ id, times }) and use, of a
--        delegated call assignment and reportMs, and of a call of a worker remote (its mark as JSON); bytes: event <name>, snapshot <name>
-- Output "started" | "fenced" | "retry"
local key = K['call ' .. step.name]
local call = fields(key, 'owner', 'epoch', 'ended', 'started', 'lease', 'version', 'attempts', 'op', 'queuedUntil', 'history')
local answered = answer_of(call)
if answered then return answered end
if not fenced(call) or call.started == '1' or tonumber(call.lease) <= now or may_have_run(call) then return answer('fenced') end
if tonumber(call.version) ~= step.version then return answer('retry') end
local rules = step.rulesVersion and tonumber(redis.call('HGET', K.tree, 'rules') or 0)
if step.rulesVersion and step.rulesVersion ~= rules then return answer('retry') end
local uses = {}
for _, grant in ipairs(step.counted or {}) do
  uses[grant.id] = with_use(grant)
  if not uses[grant.id] then return answer('retry') end
end
local seq, part = append_part(step.session, step.name)
for id, names in pairs(uses) do redis.call('HSET', K.uses, id, names) end
redis.call('HSET', key, 'part', part, 'revision', seq, 'version', call.version + 1, 'started', 1, 'attempts', call.attempts + 1,
  'op', remembered('started'))
if step.remote then redis.call('HSET', key, 'remote', step.remote) end
if call.queuedUntil then redis.call('HDEL', key, 'queuedUntil', 'queuedFor') end
if step.assignment then start_at_host(key, step.name) end
-- The last use of wider grants was written when they were adopted.
for _, id in ipairs(step.grantIds) do
  if redis.call('HEXISTS', K.grants, id) == 1 then
    redis.call('HSET', K.used, id, now)
  end
end
return commit('started')
