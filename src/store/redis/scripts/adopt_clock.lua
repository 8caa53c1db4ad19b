-- adopt_clock: adopts the clock of each server as the time of the store; repeatable.
-- KEYS   clock
-- Output "adopted"
redis.call('DEL', K.clock)
return answer('adopted')
