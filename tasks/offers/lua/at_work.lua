-- Write everything that says: this agent works on this issue. A key that cannot take its part stops no other.
-- KEYS: 1 issue metadata, 2 issues in processing, 3 process, 4 its heartbeat, 5 active processes, 6 zombies,
--       7 the agent's current task, 8 task; of what begins just now also 9 issue status, 10 task candidate
-- ARGV: 1 number, 2 agent, 3 assignment, 4 repository, 5 task type, 6 branch, 7 process id, 8 started at, 9 title, 10 URL,
--       11 labels (JSON), 12 last heartbeat, 13 the same in seconds, 14 cancelled (0/1), 15 seconds of the lease left,
--       16 and 17 seconds that the current task and the task are kept; 18 now, 19 channel of events, 20 event (JSON),
--       21 candidate (JSON), 22 seconds that it is kept
local number, agent, assignment, repository, kind, branch, process, started = unpack(ARGV, 1, 8)
local failure

local function call(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err and not failure then failure = answer.err end
end

call('HSET', KEYS[1], 'title', ARGV[9], 'url', ARGV[10], 'labels', ARGV[11], 'branch', branch, 'taskType', kind,
  'repository', repository)
call('PERSIST', KEYS[1])
call('SADD', KEYS[2], number)
call('HSET', KEYS[3], 'processId', process, 'issue', number, 'agent', agent, 'assignment', assignment,
  'repository', repository, 'taskType', kind, 'branch', branch, 'startedAt', started, 'status', 'running')
call('PERSIST', KEYS[3])
call('SET', KEYS[4], ARGV[12], 'EX', ARGV[15])
call('SADD', KEYS[5], process)
call('SREM', KEYS[6], process)
call('SET', KEYS[7], number, 'EX', ARGV[16])
call('HSET', KEYS[8], 'id', assignment, 'agent', agent, 'number', number, 'repository', repository, 'taskType', kind,
  'branch', branch, 'processId', process, 'state', 'live', 'cancelled', ARGV[14], 'saved', ARGV[13],
  'startedAt', started)
call('EXPIRE', KEYS[8], ARGV[17])
if KEYS[9] then
  call('HDEL', KEYS[9], 'reason') -- of what was before
  call('HSET', KEYS[9], 'status', 'processing', 'agent', agent, 'updatedAt', ARGV[18])
  call('PERSIST', KEYS[9])
  call('PUBLISH', ARGV[19], ARGV[20])
  call('SET', KEYS[10], ARGV[21], 'EX', ARGV[22])
end
if failure then error(failure) end
return 1
