-- finish_call: writes the terminal part, withdraws the call's open asks, ends the lease; ends its children in the same way.
-- KEYS   tree, leases, ended, settled, asks, deadlines, notices, noticeDue, notified, open <session>, call <name> and parent <name> (where it has one) of the
--        call and its children, session/log <id> of the session and its ancestors
-- ARGV   session, callId, name, lineage, and as the guard owner and epoch, or version; children ({ name, callId, version, parent
--        (its name) }, each after its parent); bytes: event <name>, snapshot <name>, withdrawn <name>
-- Output { "finished", sequence number of the part's event } | { "refused" } | { "open children" }
local key = K['call ' .. step.name]
local call = fields(key, 'owner', 'epoch', 'ended', 'version', 'waiting', 'op', 'children', 'collectMs', 'hooked', 'memo')
local answered = answer_of(call)
if answered then return answered end
if not call.version or call.ended then return answer({ 'refused' }) end
if step.version and tonumber(call.version) ~= step.version then return answer({ 'refused' }) end
if not step.version and not fenced(call) then return answer({ 'refused' }) end

-- The counted children that each ending call leaves.
local ending, left = {}, { [step.name] = tonumber(call.children or 0) }
for _, child in ipairs(step.children) do
  local found = fields(K['call ' .. child.name], 'version', 'ended', 'waiting', 'children', 'collectMs', 'hooked', 'memo')
  if found.ended or tonumber(found.version) ~= child.version then return answer({ 'open children' }) end
  if not left[child.parent] then return answer({ 'open children' }) end
  left[child.parent] = left[child.parent] - 1
  ending[child.name], left[child.name] = found, tonumber(found.children or 0)
end
for _, count in pairs(left) do
  if count ~= 0 then return answer({ 'open children' }) end
end

-- The youngest first, so that each ends before its parent.
for index = #step.children, 1, -1 do
  local child = step.children[index]
  end_call(step.session, child.callId, child.name, ending[child.name])
end
return commit(end_call(step.session, step.callId, step.name, call, 'finished'))
