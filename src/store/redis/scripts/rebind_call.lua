-- rebind_call: replaces the request data of a call that waits without an owner, and withdraws its open asks.
-- KEYS   op, tree, leases, settled, asks, deadlines, notices, noticeDue, notified, call <name>, session/log <id> of the session and its ancestors
-- ARGV   session, name, version, lineage, spec; bytes: withdrawn (the settlement that all withdrawn asks share)
-- Output "rebound" | "refused"
local key = K['call ' .. step.name]
local call = fields(key, 'owner', 'lease', 'ended', 'started', 'version', 'waiting', 'collectMs')
if not call.version or call.ended or call.started == '1' then return answer('refused') end
if tonumber(call.version) ~= step.version then return answer('refused') end
if call.owner ~= '' and tonumber(call.lease) > now then return answer('refused') end
withdraw(step.session, words(call.waiting), B.withdrawn)
local lease = now + (call.collectMs or 0)
redis.call('HSET', key, 'spec', step.spec, 'version', call.version + 1, 'waiting', '', 'owner', '', 'lease', lease, 'settled', now)
redis.call('ZADD', K.leases, lease, step.name)
return commit('rebound')
