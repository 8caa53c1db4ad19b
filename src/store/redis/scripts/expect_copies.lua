-- expect_copies: stores how many copies each master should have: the highest number that was counted, or the one that is set; repeatable.
-- KEYS   copies
-- ARGV   counted, set (the number of the settings, where there is one)
-- Output the number
local stored = tonumber(redis.call('GET', K.copies) or 0)
local expected = step.set or math.max(step.counted, stored)
if expected ~= stored then redis.call('SET', K.copies, expected) end
return expected
