-- drop_log: removes the log of an idle session; its sequence numbers continue.
-- KEYS   session, log
-- ARGV   before
-- Output "dropped" | "nothing"
local active = redis.call('HGET', K.session, 'active')
if not active or tonumber(active) > step.before then return answer('nothing') end
redis.call('UNLINK', K.log)
return answer('dropped')
