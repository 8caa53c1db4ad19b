-- read_log: a page of a session's log, at least one event if there is one.
-- KEYS   session, log
-- ARGV   after, maxBytes
-- Output nothing | first number, last number, { number, time, event, ... }
local head = fields(K.session, 'seq', 'first')
if not head.seq then return {} end
local seq, first = tonumber(head.seq), tonumber(head.first)
if redis.call('EXISTS', K.log) == 0 then first = seq + 1 end
local events, bytes, from = {}, 0, step.after + 1
while from > 0 and from >= first and from <= seq do
  for _, entry in ipairs(redis.call('XRANGE', K.log, from, '+', 'COUNT', 16)) do
    local number, event = tonumber(string.match(entry[1], '^%d+')), entry[2][6]
    bytes = bytes + #event
    if #events > 0 and bytes > step.maxBytes then return { first, seq, events } end
    events[#events + 1] = number
    events[#events + 1] = entry[2][2]
    events[#events + 1] = event
    from = number + 1
  end
end
return { first, seq, events }
