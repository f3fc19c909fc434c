-- Bring what Redis shows of some issues in line with what their rows say. What is right already is read and not
-- written: every byte written goes to the append-only file as well.
-- KEYS: 1 a name that nothing is kept under, 2 entries, 3 open, 4 waiting, 5 claimed, 6 queue high, 7 queue normal,
--       8 queue low, 9 open_issues, 10 its slots
-- ARGV: 1 offer stem, 2 float stem, 3 working stem, 4 now (seconds), 5 now (ISO), 6 repository, 7 channel of events,
--       8 look after what is unchanged, too (0/1), 9 spare bytes of a slot,
--       then again and again: instruction, number of its arguments, its arguments (see `instructions`)
-- An entry: k counted priority (-1 none), p priority of the offer (-1: floats), s order inside the bucket,
--           r roles, d due (seconds, 0 at once), o on offer (0/1), w labels while in progress, t type of the task
-- Returns: {JSON list of the role lists of what is newly on offer, 1 if the best bucket changed,
--           1 if open_issues must be written anew, the first failure or ''}

-- Changes nothing, and is refused by a Redis that is full or takes no writes. Later it would be too late: a script
-- that has taken something out may go on to put in more, and half of this would be done.
redis.call('SETRANGE', KEYS[1], 0, '')

local ENTRIES, OPEN, CLAIMED, ARRAY, SLOTS = KEYS[2], KEYS[3], KEYS[5], KEYS[9], KEYS[10]
local index = { offer = ARGV[1], float = ARGV[2], waiting = KEYS[4], queues = { KEYS[6], KEYS[7], KEYS[8] } }
local WORKING, NOW, NOW_ISO, REPOSITORY, EVENTS = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV[7]
local IS_FORCED, SPARE = ARGV[8] == '1', tonumber(ARGV[9])

local function is_error(answer)
  return type(answer) == 'table' and answer.err ~= nil
end

-- What the reading command says; a key of another type is not ours and goes.
local function read(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if is_error(answer) then
    redis.call('DEL', key)
    answer = redis.call(command, key, ...)
  end
  return answer
end

-- An empty `seconds` means for ever.
local function live_for(key, seconds, is_changed)
  if seconds == '' then
    redis.call('PERSIST', key)
  elseif is_changed or redis.call('TTL', key) == -1 then
    redis.call('EXPIRE', key, seconds)
  end
end

local instructions = {}

-- A text; an empty one means none.
function instructions.text(key, value, seconds)
  if value == '' then
    redis.call('DEL', key)
  else
    local is_changed = read('GET', key) ~= value
    if is_changed then redis.call('SET', key, value) end
    live_for(key, seconds, is_changed)
  end
end

-- Fields of a hash. `may_make`: 0 changes only one that is there. Then the number of fields to take out, these,
-- and pairs of field and value.
function instructions.hash(key, seconds, may_make, dropped, ...)
  if may_make == '0' and redis.call('EXISTS', key) == 0 then return end
  local given, names, differing = { ... }, {}, {}
  local first, is_changed = tonumber(dropped) + 1, false
  for at = first, #given, 2 do names[#names + 1] = given[at] end
  local known = read('HMGET', key, unpack(names))
  for place, name in ipairs(names) do
    local value = given[first + 2 * place - 1]
    if known[place] ~= value then
      differing[#differing + 1] = name
      differing[#differing + 1] = value
    end
  end
  if #differing > 0 then
    redis.call('HSET', key, unpack(differing))
    is_changed = true
  end
  if first > 1 and redis.call('HDEL', key, unpack(given, 1, first - 1)) > 0 then is_changed = true end
  live_for(key, seconds, is_changed)
end

function instructions.member(key, member, is_in)
  redis.call(is_in == '1' and 'SADD' or 'SREM', key, member)
end

-- A process that was lost, unless it is shown as lost already: whoever has seen to it takes it out of the set.
function instructions.zombie(key, process, info)
  if read('HGET', info, 'status') ~= 'lost' then redis.call('SADD', key, process) end
end

-- A member of a set that ends at a moment.
function instructions.until_moment(key, member, moment)
  if redis.call('SADD', key, member) == 1 then redis.call('EXPIREAT', key, moment) end
end

-- A sign of life that the row has heard of. Heartbeats write these keys, too, and more often: a newer one stays.
function instructions.alive(beat, current, task, moment, moment_seconds, lease_left, number, current_lives, task_lives)
  local known = read('GET', beat)
  if not known or known < moment then
    redis.call('SET', beat, moment, 'EX', lease_left)
    redis.call('SET', current, number, 'EX', current_lives)
    redis.call('HSET', task, 'saved', moment_seconds)
    redis.call('EXPIRE', task, task_lives)
  elseif read('GET', current) ~= number then
    redis.call('SET', current, number, 'EX', current_lives)
  end
end

-- An agent has ended a number; it may have taken another one since.
function instructions.idle(current, number)
  if read('GET', current) == number then redis.call('DEL', current) end
end

-- The status of an issue; whoever listens hears of every change. A closed one is shown for `seconds`, if it was shown.
function instructions.status(key, number, word, agent, reason, process, seconds)
  local known = read('HMGET', key, 'status', 'agent', 'reason', 'updatedAt')
  if seconds ~= '' and not known[1] then return end
  if known[1] ~= word or not known[4] then redis.call('HSET', key, 'status', word, 'updatedAt', NOW_ISO) end
  if agent ~= '' and known[2] ~= agent then redis.call('HSET', key, 'agent', agent) end
  if reason == '' then
    redis.call('HDEL', key, 'reason')
  elseif known[3] ~= reason then
    redis.call('HSET', key, 'reason', reason)
  end
  live_for(key, seconds, known[1] ~= word)
  if known[1] and known[1] ~= word then
    local is_of_work = process ~= '' and (known[1] == 'processing' or word == 'processing')
    redis.call('PUBLISH', EVENTS, cjson.encode({
      issue = tonumber(number), status = word, processId = is_of_work and process or cjson.null,
      repository = REPOSITORY, timestamp = NOW_ISO,
    }))
  end
end

function instructions.count(key, field, seconds)
  redis.call('HINCRBY', key, field, 1)
  redis.call('EXPIRE', key, seconds)
end

function instructions.unlock(key, owner)
  if redis.call('GET', key) == owner then redis.call('DEL', key) end
end

-- The offer index

local best_before = best_open(OPEN)
local new_offers = {}
-- What has no priority of its own goes with the best one, which the entries after it may change once more.
local floated_with = {}

local function count_open(old, new)
  if old == new then
    -- Nothing to count, but a priority that Redis forgot would let worse ones pass.
    if new >= 0 and tonumber(redis.call('HGET', OPEN, new) or 0) < 1 then redis.call('HSET', OPEN, new, 1) end
    return
  end
  if old >= 0 and redis.call('HINCRBY', OPEN, old, -1) <= 0 then redis.call('HDEL', OPEN, old) end
  if new >= 0 then redis.call('HINCRBY', OPEN, new, 1) end
end

local function label_working(number, old, new)
  local stays = {}
  for _, name in ipairs(new) do
    stays[name] = true
    redis.call('SADD', WORKING .. name, number)
  end
  for _, name in ipairs(old) do
    if not stays[name] then redis.call('SREM', WORKING .. name, number) end
  end
end

local function places(number, entry)
  if not entry or entry.o ~= 1 then return {} end
  if entry.d > NOW then return { [index.waiting] = entry.d } end
  local best = nil
  if entry.p < 0 then
    best = best_open(OPEN)
    floated_with[number] = best or 0
  end
  return places_on_offer(entry, best, index)
end

-- An entry of the index; an empty one takes the number out. A set that has a number with its score already is not
-- written to by ZADD; nothing is taken out to be put back.
function instructions.entry(number, text)
  local old_text = redis.call('HGET', ENTRIES, number)
  local was_claimed = redis.call('ZREM', CLAIMED, number) == 1
  if old_text == text and not was_claimed and not IS_FORCED then return end
  local old = old_text and cjson.decode(old_text) or nil
  local entry = text ~= '' and cjson.decode(text) or nil
  count_open(old and old.k or -1, entry and entry.k or -1)
  local stays = places(number, entry)
  if old and old.o == 1 then leave(number, old, index, stays) end
  for key, score in pairs(stays) do redis.call('ZADD', key, score, number) end
  label_working(number, old and old.w or {}, entry and entry.w or {})
  if not entry then
    redis.call('HDEL', ENTRIES, number)
  elseif text ~= old_text then
    redis.call('HSET', ENTRIES, number, text)
  end
  local was_on_offer = old and old.o == 1 and old.d <= NOW and not was_claimed
  if entry and entry.o == 1 and entry.d <= NOW and not was_on_offer then new_offers[#new_offers + 1] = entry.r end
end

-- Put what floats into the queue of the best priority as it is now; 1 if that has changed.
local function settle_floats()
  local best = best_open(OPEN)
  local function float(number, text)
    local score = bucket(best or 0) + cjson.decode(text).s
    local wanted = queue_of(best or 0, index.queues)
    for _, key in ipairs(index.queues) do
      if key ~= wanted then redis.call('ZREM', key, number) end
    end
    redis.call('ZADD', wanted, score, number)
  end
  if best ~= best_before then
    for _, number in ipairs(redis.call('ZRANGE', index.float .. '*', 0, -1)) do
      float(number, redis.call('HGET', ENTRIES, number))
    end
    return 1
  end
  for number, priority in pairs(floated_with) do
    local stands = priority ~= (best or 0) and redis.call('ZSCORE', index.float .. '*', number)
    local text = stands and redis.call('HGET', ENTRIES, number)
    if text then float(number, text) end
  end
  return 0
end

-- The JSON array `open_issues`: each issue stands in a slot with spare white space behind it, which JSON does not mind,
-- so that one can change without the array being written anew. Commas belong to the slots.

local is_array_full = 0
local array_length = read('STRLEN', ARRAY)

local function write_into(number, slot, text)
  local offset, length = string.match(slot, '^(%d+):(%d+)$')
  offset, length = tonumber(offset), tonumber(length)
  local fits = text ~= '' and #text + 1 <= length
  if fits then
    local wanted = (offset == 1 and ' ' or ',') .. text .. string.rep(' ', length - #text - 1)
    if redis.call('GETRANGE', ARRAY, offset, offset + length - 1) ~= wanted then
      redis.call('SETRANGE', ARRAY, offset, wanted)
    end
    return true
  elseif offset == 1 then
    -- The first slot has no comma before it: when it goes, the next one would begin with a comma.
    is_array_full = 1
    return true
  end
  redis.call('SETRANGE', ARRAY, offset, string.rep(' ', length))
  redis.call('HDEL', SLOTS, number)
  return false
end

local function append(number, text)
  local offset, lead = array_length - 1, ','
  if redis.call('HLEN', SLOTS) == 0 then
    if offset > 1 then redis.call('SET', ARRAY, '[]') end -- every slot was emptied: begin again
    offset, lead = 1, ' '
  end
  redis.call('SETRANGE', ARRAY, offset, lead .. text .. string.rep(' ', SPARE) .. ']')
  redis.call('HSET', SLOTS, number, offset .. ':' .. #text + 1 + SPARE)
  array_length = offset + #text + 1 + SPARE + 1
end

-- An issue inside the array; an empty one takes it out. One that does not fit stands there as it was.
function instructions.slot(number, text)
  if array_length < 2 then
    is_array_full = 1
    return
  end
  local slot = redis.call('HGET', SLOTS, number)
  local is_written = slot and write_into(number, slot, text)
  if text ~= '' and not is_written then append(number, text) end
end

-- One that fails stops no other.
local failure = ''
local at = 10
while at <= #ARGV do
  local count = tonumber(ARGV[at + 1])
  local ok, problem = pcall(instructions[ARGV[at]], unpack(ARGV, at + 2, at + 1 + count))
  if not ok and failure == '' then failure = type(problem) == 'table' and problem.err or tostring(problem) end
  at = at + 2 + count
end
local is_best_changed = settle_floats()
return { #new_offers > 0 and cjson.encode(new_offers) or '[]', is_best_changed, is_array_full, failure }
