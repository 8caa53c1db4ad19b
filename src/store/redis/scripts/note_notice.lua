-- note_notice: records the result of an attempt to deliver a notice, and releases its lease; repeatable.
-- KEYS   notices, noticeDue
-- ARGV   notice ("ask channel recipient"), phase, owner, result ("accepted" | "retry" | "dead"), ref (of one accepted), at (of the next attempt),
--        why (of a failure)
-- Output "noted" | "lost"
local stored = redis.call('HGET', K.notices, step.notice)
local notice = stored and cjson.decode(stored)
if not notice or notice.owner ~= step.owner then return answer('lost') end
local was_settled = step.phase == 'opened' and notice.state == 'settled'
if not was_settled and notice.state ~= step.phase then return answer('lost') end
if step.result == 'accepted' then notice.ref = step.ref end
-- What was settled while its opening was being sent is due at once.
if not was_settled then
  if step.result == 'retry' then
    notice.attempts, notice.at, notice.why = notice.attempts + 1, step.at, step.why
  else
    notice.state = step.result == 'dead' and 'dead' or step.phase == 'opened' and 'sent' or 'closed'
    notice.why = step.why
  end
end
notice.owner, notice.lease = '', 0
write_notice(step.notice, notice)
return answer('noted')
