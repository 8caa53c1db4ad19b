-- read_open: lists the first open asks of some trees, by their places.
-- KEYS   asks of each tree
-- ARGV   the place from which on they are listed, and their number
-- Output as one text, which costs less to read than a list, for each ask its id, its place, and the index of its tree in KEYS.
--        There are more than that number where several have the last place, and fewer only where no others are open.
local from, count = ARGV[1], tonumber(ARGV[2])

-- Moves to the next ask of a tree; what is read of it doubles each time.
local function advance(head)
  head.at = head.at + 2
  if head.at > #head.asks then
    head.asks = redis.call('ZRANGEBYSCORE', KEYS[head.tree], from, '+inf', 'WITHSCORES', 'LIMIT', head.read, head.portion)
    head.at, head.read, head.portion = 1, head.read + head.portion, 2 * head.portion
  end
  head.place = tonumber(head.asks[head.at + 1])
end

-- The tree with the first ask comes last.
local heads = {}
for tree = 1, #KEYS do
  local head = { tree = tree, asks = {}, at = 0, read = 0, portion = 1 }
  advance(head)
  if head.place then heads[#heads + 1] = head end
end
table.sort(heads, function(one, other) return one.place > other.place end)

local found, last = {}, nil
while #heads > 0 do
  local head = table.remove(heads)
  if #found >= count and head.place ~= last then break end
  found[#found + 1] = head.asks[head.at] .. ' ' .. head.asks[head.at + 1] .. ' ' .. head.tree
  last = head.place
  advance(head)
  if head.place then
    local index = #heads + 1
    while index > 1 and heads[index - 1].place < head.place do
      heads[index], index = heads[index - 1], index - 1
    end
    heads[index] = head
  end
end
return table.concat(found, ' ')
