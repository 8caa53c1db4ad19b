-- escalate_ask: takes the steps of an open ask that are due.
-- KEYS   op, tree, asked, deadlines, notices, noticeDue, notified, call <name>, session/log <id> of the session and its ancestors
-- ARGV   session, name, ask, version, next (the time of the step that follows, where there is one), lineage,
--        notices (as in open_asks); bytes: asked, escalated (the event)
-- Output "escalated" | "refused"
local key, next_step = K['call ' .. step.name], step.ask .. ' escalates'
local call = fields(key, 'version', 'ended')
if call.ended or tonumber(call.version) ~= step.version then return answer('refused') end
local due, expires = redis.call('ZSCORE', K.deadlines, next_step), redis.call('ZSCORE', K.deadlines, step.ask)
if not due or tonumber(due) > now or not expires or tonumber(expires) <= now then return answer('refused') end

redis.call('HSET', K.asked, step.ask, B.asked)
if step.next then redis.call('ZADD', K.deadlines, step.next, next_step) else redis.call('ZREM', K.deadlines, next_step) end
append_upwards(step.session, B.escalated)
local added, known = {}, {}
for _, notice in ipairs(step.notices) do
  local has = known[notice.target] or redis.call('HEXISTS', K.notices, step.ask .. ' ' .. notice.target) == 1
  known[notice.target] = true
  if not has then added[#added + 1] = notice end
end
if #added > 0 then open_notices(added, { [step.ask] = cjson.decode(redis.call('HGET', K.notified, step.ask) or '[]') }) end
redis.call('HSET', key, 'version', call.version + 1)
return commit('escalated')
