-- settle_ask: decides the race for an ask and writes every change of the winner.
-- KEYS   op, tree, leases, ended, settled, asks, deadlines, notices, noticeDue, notified, grants, outbox, call <name>, open <session> and (where
--        a child ends) parent <name> of their calls, session/log <id> of all sessions in question and their ancestors, asked (where some get votes)
-- ARGV   history, ask, settled ({ id, session }), voted ({ id, session }, where some get votes and stay open), expired, asksVersion (where grants are saved), lineage,
--        calls ({ name, session, callId, version, ended, edited, and of one that starts owner and leaseMs }),
--        grants ({ id, session, wide }); bytes: settled <id>, asked <id> and voted <id>, event <name>, snapshot <name>, withdrawn <name>, grant <id>, granted <id>
-- Output { "won", names of the calls that a replica has to claim } | { "lost", the settlement of the winner or "" } | { "retry" }
local winner = redis.call('HGET', K.settled, step.ask)
if winner then return answer({ 'lost', winner }) end
local expires = redis.call('ZSCORE', K.deadlines, step.ask)
if not expires or (tonumber(expires) <= now) ~= step.expired then return answer({ 'lost', '' }) end

local asks = tonumber(redis.call('HGET', K.tree, 'asks') or 0)
if step.asksVersion and step.asksVersion ~= asks then return answer({ 'retry' }) end
local settled, calls = {}, {}
for _, ask in ipairs(step.settled) do
  settled[ask.id] = true
  if not redis.call('ZSCORE', K.asks, ask.id) then return answer({ 'retry' }) end
end
for _, ask in ipairs(step.voted or {}) do
  if not redis.call('ZSCORE', K.asks, ask.id) then return answer({ 'retry' }) end
end
for _, each in ipairs(step.calls) do
  local call = fields(K['call ' .. each.name], 'version', 'ended', 'waiting', 'owner', 'collectMs', 'lease', 'started', 'attempts', 'epoch', 'hooked', 'memo', 'history')
  if call.ended or not call.version or tonumber(call.version) ~= each.version then return answer({ 'retry' }) end
  call.left = without(call.waiting, settled)
  local is_owned = call.owner ~= '' and tonumber(call.lease) > now
  if each.owner and (is_owned or call.started == '1' or call.left ~= '' or may_have_run(call)) then return answer({ 'retry' }) end
  calls[each.name] = call
end

for _, ask in ipairs(step.settled) do settle(ask.session, ask.id, B['settled ' .. ask.id]) end
for _, ask in ipairs(step.voted or {}) do
  redis.call('HSET', K.asked, ask.id, B['asked ' .. ask.id])
  append_upwards(ask.session, B['voted ' .. ask.id])
end
for _, grant in ipairs(step.grants) do
  local place = K[grant.wide and 'outbox' or 'grants']
  redis.call('HSET', place, grant.id, B['grant ' .. grant.id])
  redis.call('HINCRBY', K.tree, 'rules', 1)
  if K['session ' .. grant.session] then append(grant.session, B['granted ' .. grant.id]) end
end
local result = { 'won' }
for _, each in ipairs(step.calls) do
  local key, call = K['call ' .. each.name], calls[each.name]
  if each.ended then
    call.waiting = call.left
    end_call(each.session, each.callId, each.name, call)
  else
    if each.edited or each.owner then write_part(each.session, each.name) end
    redis.call('HSET', key, 'version', call.version + 1, 'settled', now, 'waiting', call.left)
    if each.owner then
      redis.call('HSET', key, 'owner', each.owner, 'lease', now + each.leaseMs, 'epoch', call.epoch + 1, 'started', 1, 'attempts', call.attempts + 1)
      redis.call('ZADD', K.leases, now + each.leaseMs, each.name)
    elseif call.owner == '' and call.left == '' then
      redis.call('HSET', key, 'lease', now + (call.collectMs or 0))
      redis.call('ZADD', K.leases, now + (call.collectMs or 0), each.name)
      if not call.collectMs then result[#result + 1] = each.name end
    end
  end
end
return commit(result)
