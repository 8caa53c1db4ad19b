-- start_call: writes the start mark.
-- KEYS   tree, leases, callOf, grants, used, session <id>, log <id>, call <name>
-- ARGV   session, name, owner, epoch, version, rulesVersion (where grants were consulted), grantIds, and of a
--        delegated call assignment and reportMs; bytes: event <name>, snapshot <name>
-- Output "started" | "fenced" | "retry"
local key = K['call ' .. step.name]
local call = fields(key, 'owner', 'epoch', 'ended', 'started', 'lease', 'version', 'op')
local answered = answer_of(call)
if answered then return answered end
if not fenced(call) or call.started == '1' or tonumber(call.lease) <= now then return answer('fenced') end
if tonumber(call.version) ~= step.version then return answer('retry') end
local rules = tonumber(redis.call('HGET', K.tree, 'rules') or 0)
if step.rulesVersion and step.rulesVersion ~= rules then return answer('retry') end
write_part(step.session, step.name)
redis.call('HSET', key, 'version', call.version + 1, 'started', 1, 'op', remembered('started'))
redis.call('HINCRBY', key, 'attempts', 1)
if step.assignment then start_at_host(key, step.name) end
-- The last use of wider grants was written when they were adopted.
for _, id in ipairs(step.grantIds) do
  if redis.call('HEXISTS', K.grants, id) == 1 then
    redis.call('HSET', K.used, id, now)
    keep(K.used)
  end
end
return commit('started')
