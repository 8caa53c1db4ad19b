-- start_call: the start mark.
-- KEYS   op, tree, session <id>, log <id>, call <name>
-- ARGV   session, name, owner, epoch, version, rulesVersion (where grants were relied on); bytes: told <name>, whole <name>
-- Output "started" | "fenced" | "retry"
local key = K['call ' .. step.name]
local call = fields(key, 'owner', 'epoch', 'ended', 'started', 'lease', 'version')
if not fenced(call) or call.started == '1' or tonumber(call.lease) <= now then return answer('fenced') end
if tonumber(call.version) ~= step.version then return answer('retry') end
local rules = tonumber(redis.call('HGET', K.tree, 'rules') or 0)
if step.rulesVersion and step.rulesVersion ~= rules then return answer('retry') end
write_part(step.session, step.name)
redis.call('HSET', key, 'version', call.version + 1, 'started', 1)
redis.call('HINCRBY', key, 'attempts', 1)
return commit('started')
