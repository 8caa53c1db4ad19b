-- open_call: accepts a call under a lease.
-- KEYS   tree, session <id>, log <id>, calls, open, leases, call <name>, callOf (for an assignment), ended (for an end), reads, parent
-- ARGV   history (the generation of the shard), session, callId, name, generation, owner, leaseMs, maxOpenCalls, maxRepeats, request (digest), spec, and of a
--        delegated call collectMs, and assignment and reportMs where it may start; reads (path, SHA-256, ...); of a call of a worker remote (its mark as JSON), or where it is to wait for
--        one queued ({ definitionId, until }), unclaimed (the call as { { root, session, callId } }); bytes: event
--        <name>, and (where it may start in the same step) event start, snapshot start, and (where it then ends) event end, snapshot end,
--        and (where it is to wait) progress
-- Output { "opened", sequence number of its first event, of its part, repeats, 1 if it started, 1 if it waits for a worker } | { "known" } |
--        { "no session" } | { "closed" } | { "no parent" } | { "full" } | { "generation", generation of the tree }
local call = K['call ' .. step.name]
local head = head_of(step.session)
local closed = head.closed
if not closed then return answer({ 'no session' }) end
local known = fields(call, 'version', 'op')
if known.version then return answer_of(known) or answer({ 'known' }) end
if tonumber(closed) > 0 then return answer({ 'closed' }) end
if K.parent then
  local parent = fields(K.parent, 'version', 'ended', 'history')
  -- A failover may have lost calls that it made before.
  if not parent.version or parent.ended or may_have_run(parent) then return answer({ 'no parent' }) end
end
local delegated = tonumber(head.delegated or 0)
local like = step.collectMs and delegated or redis.call('ZCARD', K.open) - delegated
if like >= step.maxOpenCalls then return answer({ 'full' }) end
local generation = tree_head().generation
if tonumber(generation) ~= step.generation then return answer({ 'generation', generation }) end

local repeats = head.latest == step.request and head.repeats + 1 or 0
local may_start = repeats <= (step.maxRepeats or repeats)
local started = B['event start'] and may_start and 1 or 0
local waits = step.queued and may_start
local lease = waits and now or now + step.leaseMs
local ended = started == 1 and B['event end']
local seq = append(step.session, B['event ' .. step.name])
local last, part = seq, step.name
if started == 1 then last, part = append(step.session, B['event start']), 'start' end
if ended then last, part = append(step.session, B['event end']), 'end' end
if waits then append(step.session, B.progress) end
local opened = { 'opened', seq, last, repeats, started, waits and 1 or 0 }
local more = ended and { 'ended', now } or {}
if started == 1 and step.remote then more[#more + 1], more[#more + 2] = 'remote', step.remote end
if waits then more = { 'queuedUntil', step.queued['until'], 'queuedFor', step.queued.definitionId } end
redis.call('HSET', call, 'op', remembered(opened), 'part', B['snapshot ' .. part] or B['event ' .. part], 'revision', last, 'session', step.session,
  'callId', step.callId, 'opened', seq, 'spec', step.spec, 'version', 1 + started + (ended and 1 or 0), 'epoch', 1,
  'owner', (ended or waits) and '' or step.owner, 'lease', ended and 0 or lease, 'started', started, 'attempts', started,
  'history', step.history, 'repeats', repeats, 'settled', 0, 'asks', '', 'waiting', '', unpack(more))
mark_head(step.session, 'latest', step.request, 'repeats', repeats)
if step.collectMs then
  redis.call('HSET', call, 'collectMs', step.collectMs)
  redis.call('HINCRBY', K['session ' .. step.session], 'delegated', 1)
end
redis.call('ZADD', K.calls, seq, step.callId)
if started == 1 and step.reads then
  redis.call('HSET', K.reads, unpack(step.reads))
end
if ended then
  redis.call('ZADD', K.ended, now, step.name)
  return commit(opened)
end
redis.call('ZADD', K.open, seq, step.callId)
if K.parent then redis.call('HINCRBY', K.parent, 'children', 1) end
redis.call('ZADD', K.leases, lease, step.name)
if started == 1 and step.assignment then start_at_host(call, step.name) end
-- The decisions are those of the start.
if started == 0 then step.decided = {} end
if not waits then step.unclaimed = nil end
return commit(opened)
