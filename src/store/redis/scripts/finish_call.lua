-- finish_call: writes the terminal part, withdraws the call's open asks, ends the lease.
-- KEYS   tree, leases, ended, settled, asks, deadlines, open <session>, call <name>, session/log <id> of the session and
--        its ancestors
-- ARGV   session, callId, name, lineage, and as the guard owner and epoch, or version; bytes: event <name>, snapshot <name>, withdrawn <name>
-- Output { "finished", sequence number of the part's event } | { "refused" }
local key = K['call ' .. step.name]
local call = fields(key, 'owner', 'epoch', 'ended', 'version', 'waiting', 'op')
local answered = answer_of(call)
if answered then return answered end
if not call.version or call.ended then return answer({ 'refused' }) end
if step.version and tonumber(call.version) ~= step.version then return answer({ 'refused' }) end
if not step.version and not fenced(call) then return answer({ 'refused' }) end
local finished = { 'finished', end_call(step.session, step.callId, step.name, call.waiting) }
redis.call('HSET', key, 'version', call.version + 1, 'op', remembered(finished))
return commit(finished)
