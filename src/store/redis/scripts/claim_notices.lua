-- claim_notices: claims due notices of a tree that no live lease holds, the earliest first.
-- KEYS   op, tree, notices, noticeDue
-- ARGV   owner, leaseMs, channels (channel -> maximum number of its notices)
-- Output { "ask channel recipient", "opened" | "settled", failed attempts, name of the message at the provider, ... }
local found, left = {}, step.channels
for _, member in ipairs(redis.call('ZRANGE', K.noticeDue, '-inf', now, 'BYSCORE')) do
  local channel = string.match(member, '^%S+ (%S+)')
  if (left[channel] or 0) > 0 then
    left[channel] = left[channel] - 1
    local notice = cjson.decode(redis.call('HGET', K.notices, member))
    notice.owner, notice.lease = step.owner, now + step.leaseMs
    write_notice(member, notice)
    for _, value in ipairs({ member, notice.state, notice.attempts, notice.ref }) do found[#found + 1] = value end
  end
end
if #found == 0 then return answer(found) end
return commit(found)
