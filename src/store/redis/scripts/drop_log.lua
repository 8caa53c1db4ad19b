-- drop_log: removes the log of an idle session; its sequence numbers continue.
-- KEYS   session, log
-- ARGV   before
-- Output "dropped" | "nothing"
local active = redis.call('HGET', K.session, 'active')
if not active or tonumber(active) > step.before then return answer('nothing') end
if redis.call('UNLINK', K.log) == 0 then return answer('nothing') end
return answer('dropped')
