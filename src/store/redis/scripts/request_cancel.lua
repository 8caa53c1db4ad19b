-- request_cancel: asks the owner of a call to stop it; the first message wins.
-- KEYS   op, tree, session <id>, call <name>
-- ARGV   session, name, message
-- Output "asked" | "nothing"
local key = K['call ' .. step.name]
local call = fields(key, 'version', 'ended', 'cancel')
if not call.version or call.ended or call.cancel then return answer('nothing') end
redis.call('HSET', key, 'cancel', step.message, 'version', call.version + 1)
notify_only(step.session)
return commit('asked')
