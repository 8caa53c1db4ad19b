-- announce_workers: stores worker processes of a replica, whose entries are listed for a while from now; repeatable.
-- KEYS   workers, replicas
-- ARGV   replica, holdMs, isAll, connections (worker -> connection), fresh (worker -> true); bytes: the entry of each worker
-- Output {"announced", "worker\nconnection" of each that stays at another replica}
--        | {"refused"} if the store has nothing of the replica, and these are not all of its workers
redis.call('ZREMRANGEBYSCORE', K.replicas, '-inf', now)
if not redis.call('ZSCORE', K.replicas, step.replica) or step.holdMs == 0 then
  redis.call('ZREM', K.replicas, step.replica)
  local living = {}
  for _, replica in ipairs(redis.call('ZRANGE', K.replicas, 0, -1)) do living[replica] = true end
  local entries = redis.call('HGETALL', K.workers)
  for index = 1, #entries, 2 do
    local replica = string.match(entries[index + 1], '^%d+ (%S+) ')
    if not living[replica] then redis.call('HDEL', K.workers, entries[index]) end
  end
  if not step.isAll then return { 'refused' } end
end
if step.holdMs > 0 then redis.call('ZADD', K.replicas, now + step.holdMs, step.replica) end
local outcome = { 'announced' }
for id, connection in pairs(step.connections) do
  local stored = redis.call('HGET', K.workers, id)
  local last, replica = 0, step.replica
  if stored then
    last, replica = string.match(stored, '^(%d+) (%S+) ')
    last = tonumber(last)
  end
  local isOther = replica ~= step.replica and redis.call('ZSCORE', K.replicas, replica)
  if last < connection or last == connection and not (isOther and not step.fresh[id]) then
    redis.call('HSET', K.workers, id, string.format('%d %s ', connection, step.replica) .. B[id])
  elseif isOther then
    outcome[#outcome + 1] = id .. '\n' .. string.format('%d', last)
  end
end
return outcome
