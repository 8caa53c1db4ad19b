-- append_output: writes bytes at an offset of an output, unless bytes before it are gone; repeatable.
-- KEYS   lengths, outputs, chunk <1 to count>
-- ARGV   id, start (place of the first byte in the output), offset (in its chunk), length (of the output afterwards), count; bytes: piece <1 to count>
-- Output the length | -1 if it is below the start
local stored = tonumber(redis.call('HGET', K.lengths, step.id) or 0)
if stored < step.start then return -1 end
local offset = step.offset
for index = 1, step.count do
  local chunk = K['chunk ' .. index]
  redis.call('SETRANGE', chunk, offset, B['piece ' .. index])
  offset = 0
end
local length = math.max(step.length, stored)
redis.call('HSET', K.lengths, step.id, length)
redis.call('ZADD', K.outputs, now, step.id)
return length
