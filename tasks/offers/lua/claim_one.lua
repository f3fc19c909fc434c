-- Lock one issue and take it off the index, whatever its priority.
-- KEYS: 1 maintenance flag, 2 memory of this claim, 3 lock, 4 entries, 5 waiting, 6 claimed,
--       7 queue high, 8 queue normal, 9 queue low
-- ARGV: 1 now (seconds), 2 agent, 3 lock seconds, 4 memory seconds, 5 number, 6 offer stem, 7 float stem
-- Returns {'maintenance', value} | {'locked', holder} | {'taken'}
-- redis-py repeats a call whose answer was lost. The memory tells that the lock is ours from the first run.
local flag = redis.call('GET', KEYS[1])
if is_flag_on(flag) then return {'maintenance', flag} end
if redis.call('EXISTS', KEYS[2]) == 1 then return {'taken'} end
if not redis.call('SET', KEYS[3], ARGV[2], 'NX', 'EX', ARGV[3]) then
  return {'locked', redis.call('GET', KEYS[3])}
end
local number = ARGV[5]
local text = redis.call('HGET', KEYS[4], number)
if text then
  leave(number, cjson.decode(text), {
    offer = ARGV[6], float = ARGV[7], waiting = KEYS[5], queues = {KEYS[7], KEYS[8], KEYS[9]},
  })
end
redis.call('ZADD', KEYS[6], ARGV[1], number)
redis.call('SET', KEYS[2], '1', 'EX', ARGV[4])
return {'taken'}
