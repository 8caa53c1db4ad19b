-- Prelude of every script that writes.
--
-- ARGV[1] is the step as JSON: its plain values, `keys` (alias -> index in KEYS), `bytes` (alias -> index in ARGV),
-- `lineage` (session -> itself and its ancestors, up to the root), and for a transition `decided` (the digests of the
-- records to append to K.audit). The other elements of ARGV are bytes, which scripts do not decode.
-- A transition answers { result, news }; news are session, first new sequence number, session, ... If the events that it
-- appended have at most `step.echo` bytes, it also answers the time and { session, sequence number, bytes, session, ... }.
-- If they have at most `step.carry` bytes, the message to other replicas has them as well.
-- The same operation, sent again, gets the same answer: a transition that wrote stores it in K.op, or (where `step.op` names the
-- operation) in the field `op` of its call.

local step = cjson.decode(ARGV[1])
local K, B = {}, {}
for alias, index in pairs(step.keys) do K[alias] = KEYS[index] end
for alias, index in pairs(step.bytes) do B[alias] = ARGV[index] end

if K.op then
  local answered = redis.call('GET', K.op)
  if answered then return cmsgpack.unpack(answered) end
end

local time = redis.call('TIME')
-- Orders entries across trees. The time of the store is behind the clock of this server once that has jumped.
local micros = time[1] * 1000000 + time[2] - (step.behind or 0) * 1000
-- Decides leases and deadlines; tests set `step.clock`.
local now = step.clock or math.floor(micros / 1000)
-- If this clock has jumped, or the replica was stopped, the replicas agree on the time before the step is taken again.
if step.near and not step.clock and math.abs(now - step.near) > step.minJumpMs then
  return redis.error_reply('CLOCK the clock of the server is ' .. math.floor(now - step.near) .. ' ms from the time of the store')
end
local news, notified = {}, {}
-- The appended events, where they are needed: session, sequence number, event, ...
local echo, echoed = (step.echo or step.carry) and {}, 0
-- Heads of sessions (the position of the log, and what open_call needs): a step reads each once, and writes it once in commit().
local heads = {}
-- Head of the tree: its generation, and the last link of its audit. A step reads and writes it once.
local tree_fields

-- Reads the named fields of a hash; missing ones are nil.
local function fields(key, ...)
  local values, found = redis.call('HMGET', key, ...), {}
  for index, name in ipairs({ ... }) do found[name] = values[index] or nil end
  return found
end

local function words(text)
  local list = {}
  for word in string.gmatch(text or '', '%S+') do list[#list + 1] = word end
  return list
end

local function notify(session, seq)
  if notified[session] then return end
  notified[session] = true
  news[#news + 1] = session
  news[#news + 1] = seq
end

local function head_of(session)
  local head = heads[session]
  if not head then
    head = fields(K['session ' .. session], 'seq', 'total', 'first', 'cut', 'closed', 'latest', 'repeats', 'delegated')
    heads[session] = head
  end
  return head
end

local function tree_head()
  tree_fields = tree_fields or fields(K.tree, 'generation', 'news', 'audited', 'auditHash')
  return tree_fields
end

-- Returns the stored answer of this operation if the call has it: the step was sent again.
local function answer_of(call)
  local id = step.op .. ' '
  if not call.op or string.sub(call.op, 1, #id) ~= id then return nil end
  return cmsgpack.unpack(string.sub(call.op, #id + 1))
end

-- Encodes the answer of this operation for its call, once everything is appended.
local function remembered(result)
  return step.op .. ' ' .. cmsgpack.pack({ result, news })
end

-- Adds news without an event.
local function notify_only(session)
  redis.call('HINCRBY', K['session ' .. session], 'rings', 1)
  notify(session, head_of(session).seq + 1)
end

-- Finds by bisection the first entry from which on a log has at most `bytes` of its `total`, or its last one.
local function first_within(log, first, last, total, bytes)
  while first < last do
    local middle = math.floor((first + last) / 2)
    local entry = redis.call('XRANGE', log, middle, '+', 'COUNT', 1)[1]
    if not entry or total - entry[2][4] <= bytes then last = middle else first = middle + 1 end
  end
  return last
end

-- Trims more of the log than one event needs, so that not every append trims; never removes the last event.
local function shorten(log, head, seq, total)
  local events, bytes = math.floor(step.limits.events * 63 / 64), math.floor(step.limits.bytes * 63 / 64)
  local first = math.max(first_within(log, tonumber(head.first), seq, total, bytes), seq - events + 1)
  redis.call('XTRIM', log, 'MINID', first)
  local entry = redis.call('XRANGE', log, first, '+', 'COUNT', 1)[1]
  return first, entry[2][4]
end

-- Appends an event to one session's log and returns its sequence number. An entry has the time, the size of all earlier
-- events, and the event.
local function append(session, event)
  local log, head = K['log ' .. session], head_of(session)
  local seq, total = head.seq + 1, head.total + #event
  local entry = { seq .. '-0', 't', now, 'n', head.total, 'e', event }
  if not redis.call('XADD', log, 'NOMKSTREAM', unpack(entry)) then
    redis.call('XADD', log, unpack(entry))
    head.first, head.cut, head.trimmed = seq, head.total, true
  end
  if seq - head.first + 1 > step.limits.events or total - head.cut > step.limits.bytes then
    head.first, head.cut = shorten(log, head, seq, total)
    head.trimmed = true
  end
  head.seq, head.total, head.changed = seq, total, true
  notify(session, seq)
  if echo then
    echo[#echo + 1], echo[#echo + 2], echo[#echo + 3] = session, seq, event
    echoed = echoed + #event
  end
  return seq
end

-- Appends an event to the logs of a session and its ancestors.
local function append_upwards(session, event)
  for _, each in ipairs(step.lineage[session]) do append(each, event) end
end

-- Returns true if the step's fence still holds for a call.
local function fenced(call)
  return call.owner == step.owner and tonumber(call.epoch) == step.epoch and not call.ended
end

-- Returns true if a failover since the call was accepted may have lost its start mark. Versions before that wrote no history.
local function may_have_run(call)
  return call.history and tonumber(call.history) ~= step.history
end

-- Returns the stored mark of a started call if a worker's mark names the same run of its body.
local function run_of(call, mark)
  if not call.remote or call.started ~= '1' or call.ended then return nil end
  local stored = cjson.decode(call.remote)
  local is_same = stored.assignment == mark.assignment and stored.instance == mark.instance and stored.principal == mark.principal
  return is_same and stored or nil
end

-- Writes a notice. It is due once its time has come and no lease holds it; one that has been delivered or ended is not.
local function write_notice(member, notice)
  redis.call('HSET', K.notices, member, cjson.encode(notice))
  if notice.state == 'opened' or notice.state == 'settled' then
    redis.call('ZADD', K.noticeDue, math.max(notice.at, notice.lease), member)
  else
    redis.call('ZREM', K.noticeDue, member)
  end
end

-- Writes notices; `targets` has those that the asks have already.
local function open_notices(notices, targets)
  for _, notice in ipairs(notices) do
    local ask, target, owner = notice.ask, notice.target, notice.owner
    local lease, state = owner == '' and 0 or now + notice.leaseMs, notice.dead == '' and 'opened' or 'dead'
    write_notice(ask .. ' ' .. target, { state = state, attempts = 0, at = notice.at, owner = owner, lease = lease, ref = '', why = notice.dead, opened = now })
    targets[ask] = targets[ask] or {}
    table.insert(targets[ask], target)
  end
  for ask, named in pairs(targets) do redis.call('HSET', K.notified, ask, cjson.encode(named)) end
end

-- Makes the notices of a settled ask due again. One that nobody tried to send ends instead. One that is being sent stays leased until
-- the result is recorded, so that the outcome never reaches the provider first.
local function settle_notices(id)
  local targets = redis.call('HGET', K.notified, id)
  if not targets then return end
  for _, target in ipairs(cjson.decode(targets)) do
    local stored = redis.call('HGET', K.notices, id .. ' ' .. target)
    local notice = stored and cjson.decode(stored)
    if notice and (notice.state == 'opened' or notice.state == 'sent') then
      local is_untried = notice.state == 'opened' and notice.attempts == 0 and notice.owner == ''
      notice.state, notice.at, notice.attempts = is_untried and 'closed' or 'settled', now, 0
      write_notice(id .. ' ' .. target, notice)
    end
  end
end

-- Writes the settlement of an ask of a call in this session, and makes its notices due; emits it in the session and its ancestors.
local function settle(session, id, event)
  settle_notices(id)
  redis.call('HSET', K.settled, id, event)
  redis.call('ZREM', K.asks, id)
  redis.call('ZREM', K.deadlines, id, id .. ' escalates')
  append_upwards(session, event)
end

local function varint(number)
  if number < 128 then return string.char(number) end
  return string.char(number % 128 + 128) .. varint(math.floor(number / 128))
end

-- Encodes a field of a protobuf message: text, bytes or another message.
local function field(tag, value)
  return varint(tag * 8 + 2) .. varint(#value) .. value
end

local crc_of_nibble

-- Adds the checksum to a message that a script has composed, as the service does to the others: CRC-32 in a field that no message has.
local function sealed(message)
  if not crc_of_nibble then
    crc_of_nibble = {}
    for nibble = 0, 15 do
      local crc = nibble
      for _ = 1, 4 do crc = bit.bxor(bit.rshift(crc, 1), bit.band(crc, 1) * 0xedb88320) end
      crc_of_nibble[nibble] = crc
    end
  end
  local crc = 0xffffffff
  for index = 1, #message do
    crc = bit.bxor(crc, string.byte(message, index))
    for _ = 1, 2 do crc = bit.bxor(bit.rshift(crc, 4), crc_of_nibble[bit.band(crc, 15)]) end
  end
  crc = bit.bnot(crc)
  local bytes = { 253, 127 }
  for shift = 0, 24, 8 do bytes[#bytes + 1] = bit.band(bit.rshift(crc, shift), 255) end
  return message .. string.char(unpack(bytes))
end

-- Withdraws asks. `settled` is the part that their settlements share, a PermissionSettled without permission_id (1); the
-- event has it as permission_settled (8).
local function withdraw(session, asks, settled)
  for _, id in ipairs(asks) do settle(session, id, sealed(field(8, field(1, id) .. settled))) end
end

local function without(waiting, gone)
  local left = {}
  for _, id in ipairs(words(waiting)) do
    if not gone[id] then left[#left + 1] = id end
  end
  return table.concat(left, ' ')
end

-- Appends the event of a call's part; returns its sequence number and the snapshot, which is whole where the event omits something.
local function append_part(session, name)
  local event = B['event ' .. name]
  return append(session, event), B['snapshot ' .. name] or event
end

-- Writes the part of a call.
local function write_part(session, name)
  local seq, part = append_part(session, name)
  redis.call('HSET', K['call ' .. name], 'part', part, 'revision', seq)
end

-- Adds fields to what write_heads() writes of a session to which this step appends.
local function mark_head(session, ...)
  local head = head_of(session)
  head.more = head.more or {}
  for _, value in ipairs({ ... }) do head.more[#head.more + 1] = value end
end

-- Counts an open child of a call less. A parked call is an orphan when its last child has ended.
local function drop_child(key)
  if redis.call('HINCRBY', key, 'children', -1) > 0 then return end
  local call = fields(key, 'owner', 'started', 'ended', 'session', 'callId')
  if call.owner ~= '' or call.started ~= '1' or call.ended then return end
  redis.call('HSET', key, 'lease', now)
  redis.call('ZADD', K.leases, now, call.session .. ':' .. call.callId)
end

-- Withdraws a call's open asks and ends the call. `call` has its version, waiting, collectMs, hooked and memo. Returns the result
-- of the step, `word` and the sequence number of the part's event; with a `word` the call stores that answer.
local function end_call(session, call_id, name, call, word)
  local key = K['call ' .. name]
  withdraw(session, words(call.waiting), B['withdrawn ' .. name])
  local seq, part = append_part(session, name)
  if B['background ' .. name] then append(session, B['background ' .. name]) end
  local written = { 'part', part, 'revision', seq, 'version', call.version + 1, 'ended', now, 'owner', '', 'lease', 0, 'waiting', '' }
  if word then written[#written + 1], written[#written + 2] = 'op', remembered({ word, seq }) end
  redis.call('HSET', key, unpack(written))
  if call.hooked or call.memo then redis.call('HDEL', key, 'hooked', 'memo') end
  if call.collectMs then redis.call('HINCRBY', K['session ' .. session], 'delegated', -1) end
  redis.call('ZREM', K['open ' .. session], call_id)
  if K['parent ' .. name] then drop_child(K['parent ' .. name]) end
  redis.call('ZREM', K.leases, name)
  redis.call('ZADD', K.ended, now, name)
  return { word, seq }
end

-- Ends the lease of a delegated call that starts, and stores the hash of its assignment.
local function start_at_host(call, name)
  local due = now + step.reportMs
  redis.call('HSET', call, 'assignment', step.assignment, 'owner', '', 'lease', due)
  redis.call('ZADD', K.leases, due, name)
  redis.call('HSET', K.callOf, step.assignment, name)
end

-- Answers a step that wrote nothing.
local function answer(result)
  return { result, {} }
end

-- Appends a link to the chain of the tree, behind the last one; returns false if that is not the last one.
local function link(seq, previous, time, content, bytes)
  local hash = redis.sha1hex(table.concat({ previous, seq, time, content }, '\n'))
  local added = redis.pcall('XADD', K.audit, seq .. '-0', 't', time, 'p', previous, 'h', hash, 'd', bytes)
  if type(added) == 'table' then return false end
  local head = tree_head()
  head.audited, head.auditHash = seq, hash
  return true
end

-- Appends the decisions to the chain of the tree; see AuditEntry.hash in the contract. The head of the tree names the last link,
-- unless a replica of an older version has appended another one: then the number is taken, and the last link is read.
local function decide()
  if #step.decided == 0 then return end
  local head, time = tree_head(), string.format('%.0f', math.floor(now))
  for index, content in ipairs(step.decided) do
    local bytes = B['decision ' .. index]
    if not head.audited or not link(head.audited + 1, head.auditHash, time, content, bytes) then
      local last = redis.call('XREVRANGE', K.audit, '+', '-', 'COUNT', 1)[1]
      local seq, previous = 1, ''
      if last then
        seq, previous = string.match(last[1], '^%d+') + 1, last[2][6]
      else
        -- A stream that was emptied refuses the numbers that it had.
        redis.call('UNLINK', K.audit)
      end
      if not link(seq, previous, time, content, bytes) then error('the audit of this tree has no last link') end
    end
  end
  head.changed = true
end

-- Returns the uses of a grant with a limit ({ id, times }), with that of the call; nil if none is left for it, or there is no such grant.
local function with_use(grant)
  if redis.call('HEXISTS', K.grants, grant.id) == 0 then return nil end
  local uses = redis.call('HGET', K.uses, grant.id) or ''
  if string.find(uses, step.use, 1, true) then return uses end
  return #uses < grant.times * #step.use and uses .. step.use or nil
end

-- Writes the head of the tree. A tree that was removed is not created again.
local function write_tree_head()
  local rang = #news > 0
  if not tree_fields then
    if rang then redis.call('HINCRBY', K.tree, 'news', 1) end
    return
  end
  local head = tree_fields
  if not head.generation or not (rang or head.changed) then return end
  local written = { 'news', (head.news or 0) + (rang and 1 or 0) }
  local function write(name, value) written[#written + 1], written[#written + 2] = name, value end
  if head.changed then
    write('audited', head.audited)
    write('auditHash', head.auditHash)
  end
  redis.call('HSET', K.tree, unpack(written))
end

-- Writes the heads of the sessions to which the step has appended.
local function write_heads()
  for session, head in pairs(heads) do
    if head.changed then
      if head.trimmed then mark_head(session, 'first', head.first, 'cut', head.cut) end
      redis.call('HSET', K['session ' .. session], 'seq', head.seq, 'total', head.total, 'active', now, unpack(head.more or {}))
    end
  end
end

-- Encodes bytes as text with one character for each byte.
local function to_text(bytes)
  return (string.gsub(bytes, '[\128-\255]', function(char)
    local byte = string.byte(char)
    return string.char(192 + math.floor(byte / 64), 128 + byte % 64)
  end))
end

-- Publishes the news to all replicas, with the events if they have at most `step.carry` bytes, and with the calls that the step leaves
-- unclaimed.
local function publish()
  if #news == 0 then return end
  local message = { step.replica, news }
  if step.carry and #echo > 0 and echoed <= step.carry then
    local events = {}
    for index, value in ipairs(echo) do events[index] = index % 3 == 0 and to_text(value) or value end
    message[3] = { time = now, events = events }
  end
  if step.unclaimed then
    message[3] = message[3] or {}
    message[3].unclaimed = step.unclaimed
  end
  redis.call('PUBLISH', step.channel, cjson.encode(message))
end

-- Answers a step that wrote: writes the heads, appends to the audit, publishes the news to all replicas, and stores the answer.
local function commit(result)
  write_heads()
  decide()
  write_tree_head()
  publish()
  local answered = { result, news }
  if K.op then redis.call('SET', K.op, cmsgpack.pack(answered), 'PX', step.rememberMs) end
  if step.echo and echoed <= step.echo then return { result, news, string.format('%.17g', now), echo } end
  return answered
end

-- Takes over the call of a step for its owner, under another epoch, and writes further fields; answers the call.
local function take_over(key, ...)
  redis.call('HINCRBY', key, 'epoch', 1)
  redis.call('HINCRBY', key, 'version', 1)
  redis.call('HSET', key, 'owner', step.owner, 'lease', now + step.leaseMs, ...)
  redis.call('ZADD', K.leases, now + step.leaseMs, step.name)
  return commit(redis.call('HGETALL', key))
end
