-- read_delegated: reads the open delegated calls of a session with this request digest.
-- KEYS   open
-- ARGV   prefix of the keys of the session's calls, request digest; see read_asks for the keys that the script builds
-- Output for each call its fields and values, in the order of acceptance
local found = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local key = ARGV[1] .. id
  local call = redis.call('HMGET', key, 'collectMs', 'spec')
  if call[1] and string.find(call[2], ARGV[2], 1, true) then found[#found + 1] = redis.call('HGETALL', key) end
end
return found
