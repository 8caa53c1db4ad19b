-- Stands before every script.
--
-- ARGV[1] is the step as JSON: its plain values, `keys` (alias -> index in KEYS), `bytes` (alias -> index in ARGV),
-- `lineage` (session -> itself and those above it, up to the root), and for a transition `decided` (the digests of the
-- records that go to K.audit). What follows in ARGV are bytes, never looked into.
-- A transition answers { result, news }; news are session, first new number, session, ... Of what it added to
-- logs, if that is no more than `step.echo` bytes, it also answers the time and { session, number, bytes, session, ... }.
-- K.op remembers the answer of a transition that wrote, so that the same operation, sent again, gets it again.

local step = cjson.decode(ARGV[1])
local K, B = {}, {}
for alias, index in pairs(step.keys) do K[alias] = KEYS[index] end
for alias, index in pairs(step.bytes) do B[alias] = ARGV[index] end

if K.op then
  local answered = redis.call('GET', K.op)
  if answered then return cmsgpack.unpack(answered) end
end

local time = redis.call('TIME')
-- What orders things, also those of different trees.
local micros = time[1] * 1000000 + time[2]
-- What decides leases and deadlines; `step.clock` is a test's.
local now = step.clock or math.floor(micros / 1000)
local news, rung = {}, {}
local echo, echoed = step.echo and {}, 0

-- Marks a key that may be new: it goes when nobody renews it for so long. The sweep renews what is in use.
local function keep(key)
  redis.call('PEXPIRE', key, step.keepMs, 'NX')
end

-- The named fields of a hash; those it lacks are nil.
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

local function ring(session, seq)
  if rung[session] then return end
  rung[session] = true
  news[#news + 1] = session
  news[#news + 1] = seq
end

-- News that are no event.
local function ring_only(session)
  redis.call('HINCRBY', K['session ' .. session], 'rings', 1)
  ring(session, redis.call('HGET', K['session ' .. session], 'seq') + 1)
end

-- The first entry from which on a log holds no more than `bytes` of its `total`, or its last one.
local function first_within(log, first, last, total, bytes)
  local from = first
  while from < last do
    local page = redis.call('XRANGE', log, from, '+', 'COUNT', 32)
    if #page == 0 then return last end
    for _, entry in ipairs(page) do
      local seq = tonumber(string.match(entry[1], '^%d+'))
      if seq >= last or total - entry[2][4] <= bytes then return seq end
      from = seq + 1
    end
  end
  return last
end

-- Removes a prefix of the log, more than one event needs, so that this is not done for each; the last event always stays.
local function shorten(log, head, seq, total)
  local events, bytes = math.floor(step.limits.events * 63 / 64), math.floor(step.limits.bytes * 63 / 64)
  local first = math.max(first_within(log, tonumber(head.first), seq, total, bytes), seq - events + 1)
  redis.call('XTRIM', log, 'MINID', first)
  local entry = redis.call('XRANGE', log, first, '+', 'COUNT', 1)[1]
  return first, entry[2][4]
end

-- Adds an event to one session's log and returns its number. Entries hold the time, the size of all before, and the event.
local function append(session, event)
  local key, log = K['session ' .. session], K['log ' .. session]
  local head = fields(key, 'seq', 'total', 'first', 'cut')
  local seq, total = head.seq + 1, head.total + #event
  local entry = { seq .. '-0', 't', now, 'n', head.total, 'e', event }
  if not redis.call('XADD', log, 'NOMKSTREAM', unpack(entry)) then
    redis.call('XADD', log, unpack(entry))
    keep(log)
    head.first, head.cut = seq, head.total
  end
  if seq - head.first + 1 > step.limits.events or total - head.cut > step.limits.bytes then
    head.first, head.cut = shorten(log, head, seq, total)
  end
  redis.call('HSET', key, 'seq', seq, 'total', total, 'first', head.first, 'cut', head.cut, 'active', now)
  ring(session, seq)
  if echo then
    echo[#echo + 1], echo[#echo + 2], echo[#echo + 3] = session, seq, event
    echoed = echoed + #event
  end
  return seq
end

-- Adds an event to the logs of a session and of all above it.
local function append_upwards(session, event)
  for _, each in ipairs(step.lineage[session]) do append(each, event) end
end

-- Whether the step's fence still holds for a call.
local function fenced(call)
  return call.owner == step.owner and tonumber(call.epoch) == step.epoch and not call.ended
end

-- Writes how an ask of a call in this session ended, for the session and all above it.
local function settle(session, id, event)
  redis.call('HSET', K.settled, id, event)
  redis.call('ZREM', K.asks, id)
  redis.call('ZREM', K.deadlines, id)
  append_upwards(session, event)
end

local function varint(number)
  if number < 128 then return string.char(number) end
  return string.char(number % 128 + 128) .. varint(math.floor(number / 128))
end

-- A field of a protobuf message that holds text, bytes or another message.
local function field(tag, value)
  return varint(tag * 8 + 2) .. varint(#value) .. value
end

-- Withdraws asks. `settled` is what all of them have in common, a PermissionSettled without permission_id (1); the event
-- has it as permission_settled (8).
local function withdraw(session, asks, settled)
  for _, id in ipairs(asks) do settle(session, id, field(8, field(1, id) .. settled)) end
end

local function without(waiting, gone)
  local left = {}
  for _, id in ipairs(words(waiting)) do
    if not gone[id] then left[#left + 1] = id end
  end
  return table.concat(left, ' ')
end

-- Writes the part of a call: what is told of it, and (where that leaves something out) the whole; `part` is their name.
local function write_part(session, name, part)
  local told, whole = B['told ' .. (part or name)], B['whole ' .. (part or name)]
  local seq = append(session, told)
  redis.call('HSET', K['call ' .. name], 'part', whole or told, 'revision', seq)
  return seq
end

-- Ends a call for good, after it withdrew what the call still asks; returns the number of its last event.
local function end_call(session, call_id, name, waiting)
  local call = K['call ' .. name]
  withdraw(session, words(waiting), B['withdrawn ' .. name])
  local seq = write_part(session, name)
  redis.call('HSET', call, 'ended', now, 'owner', '', 'lease', 0, 'waiting', '')
  redis.call('HDEL', call, 'hooked')
  redis.call('PEXPIRE', call, step.keepMs)
  redis.call('ZREM', K['open ' .. session], call_id)
  redis.call('ZREM', K.leases, name)
  redis.call('ZADD', K.ended, now, name)
  keep(K.ended)
  return seq
end

-- Answers a step that wrote nothing.
local function answer(result)
  return { result, {} }
end

-- Adds what was decided to the chain of the tree; see AuditEntry.hash in the contract.
local function decide()
  for index, content in ipairs(step.decided) do
    local last = redis.call('XREVRANGE', K.audit, '+', '-', 'COUNT', 1)[1]
    local seq, previous = 1, ''
    if last then seq, previous = string.match(last[1], '^%d+') + 1, last[2][6] end
    local time = string.format('%.0f', math.floor(now))
    local hash = redis.sha1hex(table.concat({ previous, seq, time, content }, '\n'))
    redis.call('XADD', K.audit, seq .. '-0', 't', time, 'p', previous, 'h', hash, 'd', B['decision ' .. index])
    redis.call('PEXPIRE', K.audit, step.auditMs)
  end
end

-- Answers a step that wrote: adds to the audit, tells all replicas, and remembers the answer.
local function commit(result)
  decide()
  if #news > 0 then
    redis.call('HINCRBY', K.tree, 'news', 1)
    redis.call('PUBLISH', step.channel, cjson.encode({ step.replica, news }))
  end
  local answered = { result, news }
  redis.call('SET', K.op, cmsgpack.pack(answered), 'PX', step.rememberMs)
  if echo and echoed <= step.echo then return { result, news, string.format('%.17g', now), echo } end
  return answered
end
