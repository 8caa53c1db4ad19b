-- raise_rules: invalidates decisions in a tree that uses a grant that was revoked or confirmed; emits the event once in the tree that created it.
-- KEYS   op, tree, audit, session/log <id> (where the event is emitted)
-- ARGV   mark (by which the event is emitted once), session; bytes: event
-- Output "raised" | "gone"
if redis.call('EXISTS', K.tree) == 0 then return #step.decided > 0 and commit('gone') or answer('gone') end
redis.call('HINCRBY', K.tree, 'rules', 1)
if B.event and redis.call('EXISTS', K['session ' .. step.session]) == 1 then
  if redis.call('HSETNX', K.tree, 'told ' .. step.mark, 1) == 1 then append(step.session, B.event) end
end
return commit('raised')
