-- settle_ask: decides the race for an ask and writes all that follows from the winner.
-- KEYS   op, tree, leases, ended, settled, asks, deadlines, grants, outbox, call <name> and open <session> of their calls,
--        session/log <id> of all sessions in question and those above them
-- ARGV   ask, settled ({ id, session }), expired, lineage, calls ({ name, session, callId, version, ended }), grant ({ id, session,
--        wide }); bytes: settled <id>, told <name>, whole <name>, withdrawn <name>,
--        grant, granted
-- Output { "won" } | { "lost", how it was settled or "" } | { "retry" }
local winner = redis.call('HGET', K.settled, step.ask)
if winner then return answer({ 'lost', winner }) end
local expires = redis.call('ZSCORE', K.deadlines, step.ask)
if not expires or (tonumber(expires) <= now) ~= step.expired then return answer({ 'lost', '' }) end

local settled, calls = {}, {}
for _, ask in ipairs(step.settled) do
  settled[ask.id] = true
  if not redis.call('ZSCORE', K.asks, ask.id) then return answer({ 'retry' }) end
end
for _, each in ipairs(step.calls) do
  local call = fields(K['call ' .. each.name], 'version', 'ended', 'waiting')
  if call.ended or not call.version or tonumber(call.version) ~= each.version then return answer({ 'retry' }) end
  calls[each.name] = call
end

for _, ask in ipairs(step.settled) do settle(ask.session, ask.id, B['settled ' .. ask.id]) end
keep(K.settled)
if step.grant then
  redis.call('HSET', K[step.grant.wide and 'outbox' or 'grants'], step.grant.id, B.grant)
  keep(K[step.grant.wide and 'outbox' or 'grants'])
  if not step.grant.wide then redis.call('HINCRBY', K.tree, 'rules', 1) end
  if K['session ' .. step.grant.session] then append(step.grant.session, B.granted) end
end
for _, each in ipairs(step.calls) do
  local key, call = K['call ' .. each.name], calls[each.name]
  redis.call('HSET', key, 'version', call.version + 1)
  if each.ended then
    end_call(each.session, each.callId, each.name, without(call.waiting, settled))
  else
    redis.call('HSET', key, 'settled', now, 'waiting', without(call.waiting, settled))
  end
end
return commit({ 'won' })
