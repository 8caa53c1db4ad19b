-- read_assigned: reads the call with an assignment.
-- KEYS   callOf
-- ARGV   prefix of the keys of the tree's calls, hash of the assignment; see read_asks for the key that the script builds
-- Output the fields and values of the call
local name = redis.call('HGET', KEYS[1], ARGV[2])
return name and redis.call('HGETALL', ARGV[1] .. name) or {}
