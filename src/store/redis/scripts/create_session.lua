-- create_session: adds a session to its tree, or finds the existing one with that id.
-- KEYS   tree, sessions, session <id>, parent (not for a root)
-- ARGV   session, parent, at (its place in the listing); bytes: body
-- Output "created" | "known" | "no parent" | "parent closed"
local session = K['session ' .. step.session]
if redis.call('EXISTS', session) == 1 then return answer('known') end
if K.parent then
  local closed = redis.call('HGET', K.parent, 'closed')
  if not closed then return answer('no parent') end
  if tonumber(closed) > 0 then return answer('parent closed') end
end
redis.call('HSET', session, 'body', B.body, 'parent', step.parent, 'closed', 0, 'at', step.at, 'active', now,
  'seq', 0, 'total', 0, 'first', 1, 'cut', 0, 'rings', 0)
redis.call('ZADD', K.sessions, step.at, step.session)
redis.call('HSETNX', K.tree, 'generation', 0)
return commit('created')
