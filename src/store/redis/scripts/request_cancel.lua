-- request_cancel: asks the owner of a call to stop it; the first message wins.
-- KEYS   op, tree, session <id>, log <id>, call <name>
-- ARGV   session, name, message; bytes (of a delegated call): event <name>, snapshot <name>
-- Output "asked" | "nothing"
local key = K['call ' .. step.name]
local call = fields(key, 'version', 'ended', 'cancel')
if not call.version or call.ended or call.cancel then return answer('nothing') end
redis.call('HSET', key, 'cancel', step.message, 'version', call.version + 1)
if B['event ' .. step.name] then write_part(step.session, step.name) else notify_only(step.session) end
return commit('asked')
