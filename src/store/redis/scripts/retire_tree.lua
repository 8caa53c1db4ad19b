-- retire_tree: raises the generation of a tree that is no longer live, so that its entry in the list of live trees can be removed.
-- KEYS   tree, leases, noticeDue, outbox
-- ARGV   generation
-- Output "retired" | "live"
local generation = tonumber(redis.call('HGET', K.tree, 'generation') or -1)
local busy = redis.call('EXISTS', K.leases, K.noticeDue, K.outbox) > 0
if busy and generation == step.generation then return answer('live') end
if generation == step.generation then redis.call('HSET', K.tree, 'generation', generation + 1) end
return answer('retired')
