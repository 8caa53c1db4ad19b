-- agree_on_clock: agrees with the other replicas on how far the time of the store is behind the clock of a server.
-- KEYS   clock
-- ARGV   replica, server, raw (its clock), near (the time that this replica expects; none at its start), minJumpMs, maxJumpMs
-- Output { how far it is behind, the jump that was found here or 0, number of times that another replica asked }
local behind_field, caught_up_field = 'behind ' .. step.server, 'caught up ' .. step.server
local agreed = fields(K.clock, 'seen', 'by', 'turns', behind_field, caught_up_field)
local behind = tonumber(agreed[behind_field] or 0)
local time, jump = step.raw - behind, 0
local seen = tonumber(agreed.seen or time)

local is_expected
if step.near then
  -- Where another replica has just seen this time, the clock of this replica is wrong.
  is_expected = math.abs(time - step.near) <= step.minJumpMs or math.abs(time - seen) <= 2 * step.minJumpMs
else
  -- Nothing has measured the time since.
  is_expected = time - seen >= -step.minJumpMs and time - seen <= step.maxJumpMs
end

if not is_expected then
  jump = time - math.max(step.near or seen, seen)
  behind = behind + jump
elseif math.abs(behind) <= step.maxJumpMs then
  -- The time of the store catches up, or waits, by a sixteenth of the time that passes.
  local passed = math.max(0, math.min(time - (agreed[caught_up_field] or time), 60000))
  local by = math.min(math.abs(behind), math.floor(passed / 16))
  behind = behind > 0 and behind - by or behind + by
end
time = step.raw - behind

local turns = tonumber(agreed.turns or 0) + (agreed.by == step.replica and 0 or 1)
redis.call('HSET', K.clock, 'seen', math.max(time, jump < 0 and time or seen), 'by', step.replica, 'turns', turns, behind_field, behind, caught_up_field, time)
return { behind, jump, turns }
