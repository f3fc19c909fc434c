-- Stands before every script of this folder, behind constants that Python renders: BUCKET, LAST_BUCKET, QUEUE_LIMITS,
-- OFF_WORDS (tasks/offers/index.py). The rules that scripts share are here and nowhere else in Lua.

-- Whether the value of a flag switches it on.
local function is_flag_on(value)
  return value and not OFF_WORDS[string.lower(string.match(value, '^%s*(.-)%s*$'))]
end

-- What the scores of a priority begin at; all that are too bad to have a bucket of their own share the last one.
local function bucket(priority)
  return math.min(priority, LAST_BUCKET) * BUCKET
end

-- The bucket that a score is in, by what its scores begin at.
local function bucket_of(score)
  return score - score % BUCKET
end

-- The queue of a priority, out of the three keys.
local function queue_of(priority, queues)
  for place, limit in ipairs(QUEUE_LIMITS) do
    if priority <= limit then return queues[place] end
  end
  return queues[#queues]
end

-- The best priority of all open issues; nil if none has one.
local function best_open(open)
  local best = nil
  for _, priority in ipairs(redis.call('HKEYS', open)) do
    local number = tonumber(priority)
    if best == nil or number < best then best = number end
  end
  return best
end

-- The sorted sets in which an entry stands while it can be claimed, with its score in each. An entry without a priority
-- of its own goes with the best one. `index` has the stems `offer` and `float` and the three `queues`.
local function places_on_offer(entry, best, index)
  local stem, score, priority = index.offer, entry.s, entry.p
  if priority < 0 then
    stem, priority = index.float, best or 0
  else
    score = bucket(priority) + entry.s
  end
  local places = { [stem .. '*'] = score, [queue_of(priority, index.queues)] = bucket(priority) + entry.s }
  for _, role in ipairs(entry.r) do places[stem .. role] = score end
  return places
end

-- Take a number out of every sorted set in which its entry may stand, but for those in `stays`.
local function leave(number, entry, index, stays)
  local stem = entry.p < 0 and index.float or index.offer
  local stood = { stem .. '*', index.waiting, unpack(index.queues) }
  for _, role in ipairs(entry.r) do stood[#stood + 1] = stem .. role end
  for _, key in ipairs(stood) do
    if not (stays and stays[key]) then redis.call('ZREM', key, number) end
  end
end
