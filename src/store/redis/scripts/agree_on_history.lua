-- agree_on_history: decides, once for all replicas, if the new history of a server has all that they acknowledged; repeatable.
-- KEYS   generations, replicas, agreement
-- ARGV   replica, verdict ("kept" | "lost"), shards (those of the server), known (shard -> generation), waitMs, liveMs
-- Output { "open" | "kept" | "raised", shard, generation, ... }
for shard, generation in pairs(step.known) do
  if tonumber(redis.call('HGET', K.generations, shard) or 0) < generation then
    redis.call('HSET', K.generations, shard, generation)
  end
end

local agreed = fields(K.agreement, 'since', 'decided')
if not agreed.since then
  agreed.since = now
  redis.call('HSET', K.agreement, 'since', now)
  local newest = redis.call('ZRANGE', K.replicas, -1, -1, 'WITHSCORES')[2]
  local live = newest and redis.call('ZRANGE', K.replicas, newest - step.liveMs, '+inf', 'BYSCORE') or {}
  for _, each in ipairs(live) do redis.call('HSET', K.agreement, 'replica ' .. each, '') end
  redis.call('PEXPIRE', K.agreement, 86400000)
end

if not agreed.decided then
  redis.call('HSET', K.agreement, 'replica ' .. step.replica, step.verdict)
  local is_lost, is_missing = false, false
  local reports = redis.call('HGETALL', K.agreement)
  for index = 1, #reports, 2 do
    if string.sub(reports[index], 1, 8) == 'replica ' then
      is_lost = is_lost or reports[index + 1] == 'lost'
      is_missing = is_missing or reports[index + 1] == ''
    end
  end
  if is_lost or (is_missing and now - agreed.since >= step.waitMs) then
    agreed.decided = 'raised'
    for _, shard in ipairs(step.shards) do redis.call('HINCRBY', K.generations, shard, 1) end
  elseif not is_missing then
    agreed.decided = 'kept'
  end
  if agreed.decided then redis.call('HSET', K.agreement, 'decided', agreed.decided) end
end
return { agreed.decided or 'open', unpack(redis.call('HGETALL', K.generations)) }
