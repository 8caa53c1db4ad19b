-- close_session: marks a session and its descendants closed.
-- KEYS   op, tree, sessions, and for each session to close: session <id>, open <id>
-- ARGV   closing (their ids), count (sessions of the tree when they were listed)
-- Output "retry" | { session, call id, ... } of the open calls
if redis.call('ZCARD', K.sessions) ~= step.count then return answer('retry') end
local open = {}
for _, session in ipairs(step.closing) do
  if redis.call('HGET', K['session ' .. session], 'closed') == '0' then
    redis.call('HSET', K['session ' .. session], 'closed', now)
    notify_only(session)
  end
  for _, call_id in ipairs(redis.call('ZRANGE', K['open ' .. session], 0, -1)) do
    open[#open + 1] = session
    open[#open + 1] = call_id
  end
end
return commit(open)
