-- prepare_call: records once that the before-hooks have run, with the part if they changed its input.
-- KEYS   op, tree, session <id>, log <id>, call <name>
-- ARGV   session, name, owner, epoch; bytes (where the input changed): event <name>, snapshot <name>
-- Output "prepared" | "refused"
local key = K['call ' .. step.name]
local call = fields(key, 'owner', 'epoch', 'ended', 'started', 'prepared', 'version')
if not fenced(call) or call.started == '1' or call.prepared then return answer('refused') end
if B['event ' .. step.name] then write_part(step.session, step.name) end
redis.call('HSET', key, 'prepared', 1, 'version', call.version + 1)
return commit('prepared')
