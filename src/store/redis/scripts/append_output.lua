-- append_output: writes bytes at an offset of an output; repeatable.
-- KEYS   lengths, outputs, chunk <1 to count>
-- ARGV   id, offset (of the first byte in its chunk), length (of the output afterwards), count; bytes: piece <1 to count>
-- Output the length
local offset = step.offset
for index = 1, step.count do
  local chunk = K['chunk ' .. index]
  redis.call('SETRANGE', chunk, offset, B['piece ' .. index])
  offset = 0
end
local length = math.max(step.length, tonumber(redis.call('HGET', K.lengths, step.id) or 0))
redis.call('HSET', K.lengths, step.id, length)
redis.call('ZADD', K.outputs, now, step.id)
return length
