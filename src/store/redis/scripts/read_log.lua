-- read_log: reads a page of a session's log, with at least one event if there is one.
-- KEYS   session, log
-- ARGV   sequence number after which the page begins, its maximum size in bytes
-- Output {} (no session) | { first sequence number, last one, { sequence number, time, event, ... } }
local head = redis.call('HMGET', KEYS[1], 'seq', 'first')
if not head[1] then return {} end
local seq, first, max_bytes = tonumber(head[1]), tonumber(head[2]), tonumber(ARGV[2])
if redis.call('EXISTS', KEYS[2]) == 0 then first = seq + 1 end
local events, bytes, from = {}, 0, ARGV[1] + 1
while from > 0 and from >= first and from <= seq do
  local page = redis.call('XRANGE', KEYS[2], from, '+', 'COUNT', 16)
  -- An entry is missing: the service finds that.
  if #page == 0 then break end
  for _, entry in ipairs(page) do
    local number, event = tonumber(string.match(entry[1], '^%d+')), entry[2][6]
    bytes = bytes + #event
    if #events > 0 and bytes > max_bytes then return { first, seq, events } end
    events[#events + 1] = number
    events[#events + 1] = entry[2][2]
    events[#events + 1] = event
    from = number + 1
  end
end
return { first, seq, events }
