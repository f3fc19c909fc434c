-- Take the best fitting offer of all repositories off the index and lock it, in one step.
-- KEYS: 1 maintenance flag, 2 memory of this claim
-- ARGV: 1 now (seconds), 2 agent, 3 first check (0/1), 4 the roles, a line each ('*' for any),
--       5 what is the same for every claim, a line each: gate, lock seconds, memory seconds, then for each repository
--       ready, entries, open, waiting, claimed, queue high, queue normal, queue low,
--       offer stem, float stem, lock stem, stem of the issues an agent is labelled on, stem of an agent's current task
-- Returns {'maintenance', value} | {'unbuilt', repository} | {'finish', repository, number, …}
--       | {'task', repository, number, entry} | {'none'}
-- redis-py repeats a call whose answer was lost. The memory makes the second run return what the first one took.
local now, agent, is_first_check = tonumber(ARGV[1]), ARGV[2], ARGV[3] == '1'

local flag = redis.call('GET', KEYS[1])
if is_flag_on(flag) then return {'maintenance', flag} end
local known = redis.call('GET', KEYS[2])
if known then return cjson.decode(known) end

local function lines(text)
  local found = {}
  for line in string.gmatch(text, '[^\n]+') do found[#found + 1] = line end
  return found
end
local roles, fixed = lines(ARGV[4]), lines(ARGV[5])
local gate, lock_seconds, memory_seconds = fixed[1], fixed[2], fixed[3]
local FIXED, PER_REPOSITORY = 3, 13
local best = nil
local repos = {}
for r = 1, (#fixed - FIXED) / PER_REPOSITORY do
  local f = FIXED + (r - 1) * PER_REPOSITORY
  local repo = {
    index = r, entries = fixed[f + 2], open = fixed[f + 3], waiting = fixed[f + 4], claimed = fixed[f + 5],
    queues = {fixed[f + 6], fixed[f + 7], fixed[f + 8]},
    offer = fixed[f + 9], float = fixed[f + 10], lock = fixed[f + 11],
  }
  if redis.call('EXISTS', fixed[f + 1]) == 0 then return {'unbuilt', r} end
  if is_first_check then
    local mine = redis.call('SMEMBERS', fixed[f + 12] .. agent)
    local current = redis.call('GET', fixed[f + 13] .. agent)
    if current then mine[#mine + 1] = current end
    if #mine > 0 then return {'finish', r, unpack(mine)} end
  end
  local own = best_open(repo.open)
  if own and (best == nil or own < best) then best = own end
  repos[r] = repo
end

-- Reviews whose time has come join the queues.
for _, repo in ipairs(repos) do
  for _, number in ipairs(redis.call('ZRANGEBYSCORE', repo.waiting, '-inf', now, 'LIMIT', 0, 100)) do
    redis.call('ZREM', repo.waiting, number)
    local text = redis.call('HGET', repo.entries, number)
    if text then
      for key, score in pairs(places_on_offer(cjson.decode(text), best, repo)) do
        redis.call('ZADD', key, score, number)
      end
    end
  end
end

-- Cursors over the sorted sets that this agent may draw from.
local cursors = {}
for _, repo in ipairs(repos) do
  for _, role in ipairs(roles) do
    cursors[#cursors + 1] = {repo = repo, key = repo.offer .. role, at = 0, floats = false}
    cursors[#cursors + 1] = {repo = repo, key = repo.float .. role, at = 0, floats = true}
  end
end
local function load(c)
  local head = redis.call('ZRANGE', c.key, c.at, c.at, 'WITHSCORES')
  c.number, c.score = head[1], tonumber(head[2])
end
for _, c in ipairs(cursors) do load(c) end

-- The scores of the one bucket that counts begin here.
local floor = best and bucket(best) or 0
if gate ~= 'open' then
  floor = nil
  for _, c in ipairs(cursors) do
    if c.number and not c.floats then
      local own = bucket_of(c.score)
      if floor == nil or own < floor then floor = own end
    end
  end
  floor = floor or 0
end

for _ = 1, 1000 do
  local chosen, order = nil, nil
  for _, c in ipairs(cursors) do
    if c.number then
      local s = nil
      if c.floats then s = c.score
      elseif bucket_of(c.score) == floor then s = c.score - floor end
      if s and (order == nil or s < order or (s == order and c.repo.index < chosen.repo.index)) then chosen, order = c, s end
    end
  end
  if chosen == nil then return {'none'} end
  local repo, number = chosen.repo, chosen.number
  if redis.call('SET', repo.lock .. number, agent, 'NX', 'EX', lock_seconds) then
    local text = redis.call('HGET', repo.entries, number)
    leave(number, cjson.decode(text), repo)
    redis.call('ZADD', repo.claimed, now, number)
    local answer = {'task', repo.index, number, text}
    redis.call('SET', KEYS[2], cjson.encode(answer), 'EX', memory_seconds)
    return answer
  end
  -- Locked by somebody: it stays on offer, we look at the next.
  for _, c in ipairs(cursors) do
    if c.number == number and c.repo == repo then c.at = c.at + 1; load(c) end
  end
end
return {'none'}
