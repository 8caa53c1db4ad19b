-- prepare_call: says that the hooks before a call have run, once, with the part if they changed its input.
-- KEYS   op, tree, session <id>, log <id>, call <name>
-- ARGV   session, name, owner, epoch; bytes (where the input changed): told <name>, whole <name>
-- Output "prepared" | "refused"
local key = K['call ' .. step.name]
local call = fields(key, 'owner', 'epoch', 'ended', 'started', 'prepared', 'version')
if not fenced(call) or call.started == '1' or call.prepared then return answer('refused') end
if B['told ' .. step.name] then write_part(step.session, step.name) end
redis.call('HSET', key, 'prepared', 1, 'version', call.version + 1)
return commit('prepared')
