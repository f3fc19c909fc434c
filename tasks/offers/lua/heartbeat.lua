-- A sign of life of one assignment.
-- KEYS: 1 task:info, 2 process:heartbeat, 3 agent_current_task
-- ARGV: 1 agent, 2 now (ISO), 3 now (seconds), 4 heartbeat seconds, 5 current task seconds, 6 progress ('' unchanged),
--       7 seconds between writes to the database, 8 seconds for which the task is shown
-- Returns {'live', cancelled 0/1, 1 if the database is to be told now} | {'unknown'}
local info = redis.call('HMGET', KEYS[1], 'agent', 'state', 'cancelled', 'saved', 'number')
if info[1] ~= ARGV[1] or info[2] ~= 'live' then return {'unknown'} end
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[4])
redis.call('SET', KEYS[3], info[5], 'EX', ARGV[5])
if ARGV[6] ~= '' then redis.call('HSET', KEYS[1], 'progress', ARGV[6]) end
local tell = 0
if not info[4] or tonumber(ARGV[3]) - tonumber(info[4]) >= tonumber(ARGV[7]) then
  redis.call('HSET', KEYS[1], 'saved', ARGV[3])
  tell = 1
end
redis.call('EXPIRE', KEYS[1], ARGV[8])
return {'live', info[3] == '1' and 1 or 0, tell}
