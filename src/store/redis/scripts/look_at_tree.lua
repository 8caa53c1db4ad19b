-- look_at_tree: what a reaper has to know of a tree.
-- KEYS   tree, leases, deadlines, outbox
-- ARGV   limit
-- Output { generation or "", when something is due (-1: nothing is open), grants in the outbox, { calls without a living lease } }
local lease = redis.call('ZRANGE', K.leases, 0, 0, 'WITHSCORES')[2]
local deadline = redis.call('ZRANGE', K.deadlines, 0, 0, 'WITHSCORES')[2]
local due = lease and math.min(tonumber(lease), tonumber(deadline or lease)) or -1
local lapsed = redis.call('ZRANGE', K.leases, '-inf', now, 'BYSCORE', 'LIMIT', 0, step.limit)
return { redis.call('HGET', K.tree, 'generation') or '', due, redis.call('HLEN', K.outbox), lapsed }
