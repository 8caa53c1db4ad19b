-- drop_tree: removes a tree that contains nothing but idle sessions.
-- KEYS   sessions, leases, ended, outbox, session <id> of each, rest <1 to count>
-- ARGV   ids, count, before
-- Output "dropped" | "in use"
local count = redis.call('ZCARD', K.sessions)
-- The step was sent again, or another replica has removed the tree.
if count == 0 then return answer('dropped') end
if count ~= #step.ids then return answer('in use') end
if redis.call('EXISTS', K.leases, K.ended, K.outbox) > 0 then return answer('in use') end
for _, id in ipairs(step.ids) do
  local active = redis.call('HGET', K['session ' .. id], 'active')
  if active and tonumber(active) > step.before then return answer('in use') end
end
for index = 1, step.count do redis.call('UNLINK', K['rest ' .. index]) end
return answer('dropped')
