-- look_at_tree: reads the state of a live tree for the recovery loop.
-- KEYS   tree, leases, deadlines, noticeDue, outbox
-- ARGV   all (true: all open calls are listed, whatever their leases)
-- Output { generation or "", earliest lease end, deadline or notice (-1: nothing is open), number of grants in the outbox, { calls without
--        a live lease, or all } }
local lease = redis.call('ZRANGE', K.leases, 0, 0, 'WITHSCORES')[2]
local deadline = redis.call('ZRANGE', K.deadlines, 0, 0, 'WITHSCORES')[2]
local notice = redis.call('ZRANGE', K.noticeDue, 0, 0, 'WITHSCORES')[2]
local due = lease and math.min(tonumber(lease), tonumber(deadline or lease)) or -1
if notice then due = due < 0 and tonumber(notice) or math.min(due, tonumber(notice)) end
local lapsed = redis.call('ZRANGE', K.leases, '-inf', step.all and '+inf' or now, 'BYSCORE')
return { redis.call('HGET', K.tree, 'generation') or '', due, redis.call('HLEN', K.outbox), lapsed }
