-- read_leases: reads the leases of calls of one tree, as one snapshot.
-- KEYS   call <name> of each call
-- Output for each call { lease, started, settled, ended, collectMs (of a delegated call), remote (the mark of a worker as JSON),
--        queuedUntil, queuedFor (of a call that waits for a worker), owner, waiting } or { } if it does not exist
local found = {}
for index, key in ipairs(KEYS) do
  local call = redis.call('HMGET', key, 'lease', 'started', 'settled', 'ended', 'collectMs', 'remote', 'queuedUntil', 'queuedFor', 'owner', 'waiting')
  found[index] = call[1] and call or {}
end
return found
