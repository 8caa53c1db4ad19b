-- open_asks: withdraws some of a call's open asks and opens others.
-- KEYS   op, tree, leases, asked, settled, callOf, asks, deadlines, notices, noticeDue, notified, call <name>, session/log <id> of the session and
--        its ancestors
-- ARGV   session, name, owner, epoch, version, rulesVersion (where grants were consulted), lineage, asks ({ id, expires, escalates (the time of its first step, where it has one) }),
--        notices ({ ask, target ("channel" or "channel recipient"), at, owner, leaseMs, dead }, where asks have some),
--        withdraw (ids), maxOpenAsks, dueMs (where the lease ends), queued ({ definitionId, until }, where the call waits for a worker),
--        unclaimed (the call as { { root, session, callId } }, where it waits for a worker); bytes: asked <id>, withdrawn (the settlement that all withdrawn asks share), progress (where the call waits for something else)
-- Output "opened" | "refused" | "full"
local key = K['call ' .. step.name]
local call = fields(key, 'owner', 'epoch', 'ended', 'version', 'asks', 'waiting', 'queuedUntil')
if not fenced(call) or tonumber(call.version) ~= step.version then return answer('refused') end
local rules = tonumber(redis.call('HGET', K.tree, 'rules') or 0)
if step.rulesVersion and step.rulesVersion ~= rules then return answer('refused') end

local named, withdrawn = {}, {}
for _, id in ipairs(step.withdraw) do named[id] = true end
for _, id in ipairs(words(call.waiting)) do
  if named[id] then withdrawn[#withdrawn + 1] = id end
end
if redis.call('ZCARD', K.asks) - #withdrawn + #step.asks > step.maxOpenAsks then return answer('full') end

withdraw(step.session, withdrawn, B.withdrawn)
local waiting, asks = without(call.waiting, named), call.asks
for index, ask in ipairs(step.asks) do
  local id = ask.id
  redis.call('HSET', K.asked, id, B['asked ' .. id])
  redis.call('HSET', K.callOf, id, step.name)
  redis.call('ZADD', K.asks, micros + index, id)
  redis.call('ZADD', K.deadlines, ask.expires, id)
  if ask.escalates then redis.call('ZADD', K.deadlines, ask.escalates, id .. ' escalates') end
  append_upwards(step.session, B['asked ' .. id])
  waiting, asks = waiting .. ' ' .. id, asks .. ' ' .. id
end
open_notices(step.notices or {}, {})
if B.progress then append(step.session, B.progress) end
if #step.asks > 0 then redis.call('HINCRBY', K.tree, 'asks', 1) end
redis.call('HSET', key, 'waiting', waiting, 'asks', asks, 'version', call.version + 1)
if #step.asks > 0 then
  if call.queuedUntil then redis.call('HDEL', key, 'queuedUntil', 'queuedFor') end
elseif step.queued and not call.queuedUntil then
  redis.call('HSET', key, 'queuedUntil', step.queued['until'], 'queuedFor', step.queued.definitionId)
end
if step.dueMs then
  redis.call('HSET', key, 'owner', '', 'lease', now + step.dueMs)
  redis.call('ZADD', K.leases, now + step.dueMs, step.name)
end
return commit('opened')
