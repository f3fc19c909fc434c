-- Put entries into the offer index, or take them out; says what came on offer.
-- KEYS: 1 entries, 2 open, 3 waiting, 4 claimed, 5 queue high, 6 queue normal, 7 queue low
-- ARGV: 1 offer stem, 2 float stem, 3 working stem, 4 now (seconds), 5 look after what is unchanged, too (0/1),
--       then pairs: number, entry (JSON; '' removes)
-- An entry: k counted priority (-1 none), p priority of the offer (-1: floats), s order inside the bucket,
--           r roles, d due (seconds, 0 at once), o on offer (0/1), w labels while in progress
-- A set that has a number with its score already is not written to by ZADD; nothing is taken out to be put back.
-- Returns: {newly on offer, 1 if the best bucket changed, JSON list of the role lists of what is newly on offer}
local BUCKET = 70368744177664 -- 2^46
local now = tonumber(ARGV[4])

local function best()
  local found = nil
  for _, p in ipairs(redis.call('HKEYS', KEYS[2])) do
    local n = tonumber(p)
    if found == nil or n < found then found = n end
  end
  return found
end

local function queue(p)
  if p <= 1 then return KEYS[5] elseif p == 2 then return KEYS[6] else return KEYS[7] end
end

local function bucket(p)
  if p > 127 then return 127 * BUCKET end
  return p * BUCKET
end

-- What has no priority of its own goes with the best one, which the entries after it may change once more.
local floated_with = {}

-- The sorted sets in which an entry stands, and its score in each.
local function places(number, e)
  local found = {}
  if not e or e.o ~= 1 then return found end
  if e.d > now then
    found[KEYS[3]] = e.d
    return found
  end
  local stem, score, p = ARGV[1], e.s, e.p
  if p < 0 then
    stem, p = ARGV[2], best() or 0
    floated_with[number] = p
  else
    score = bucket(p) + e.s
  end
  for _, role in ipairs(e.r) do found[stem .. role] = score end
  found[stem .. '*'] = score
  found[queue(p)] = bucket(p) + e.s
  return found
end

-- Out of wherever an entry may have stood and is not to stand any more.
local function leave(number, e, stays)
  if e.o ~= 1 then return end
  local stem = e.p < 0 and ARGV[2] or ARGV[1]
  local stood = {stem .. '*', KEYS[3], KEYS[5], KEYS[6], KEYS[7]}
  for _, role in ipairs(e.r) do stood[#stood + 1] = stem .. role end
  for _, key in ipairs(stood) do
    if not stays[key] then redis.call('ZREM', key, number) end
  end
end

local function count(old, new)
  if old == new then
    -- Nothing to count, but a priority that Redis forgot would let worse ones pass.
    if new >= 0 and tonumber(redis.call('HGET', KEYS[2], new) or 0) < 1 then redis.call('HSET', KEYS[2], new, 1) end
    return
  end
  if old >= 0 and redis.call('HINCRBY', KEYS[2], old, -1) <= 0 then redis.call('HDEL', KEYS[2], old) end
  if new >= 0 then redis.call('HINCRBY', KEYS[2], new, 1) end
end

local function label(number, old, new)
  local stays = {}
  for _, name in ipairs(new) do
    stays[name] = true
    redis.call('SADD', ARGV[3] .. name, number)
  end
  for _, name in ipairs(old) do
    if not stays[name] then redis.call('SREM', ARGV[3] .. name, number) end
  end
end

local before = best()
local fresh = {}
for i = 6, #ARGV, 2 do
  local number, text = ARGV[i], ARGV[i + 1]
  local old_text = redis.call('HGET', KEYS[1], number)
  local was_claimed = redis.call('ZREM', KEYS[4], number) == 1
  if old_text ~= text or was_claimed or ARGV[5] == '1' then
    local old = old_text and cjson.decode(old_text) or nil
    local e = text ~= '' and cjson.decode(text) or nil
    count(old and old.k or -1, e and e.k or -1)
    local stays = places(number, e)
    if old then leave(number, old, stays) end
    for key, score in pairs(stays) do redis.call('ZADD', key, score, number) end
    label(number, old and old.w or {}, e and e.w or {})
    if not e then
      redis.call('HDEL', KEYS[1], number)
    elseif text ~= old_text then
      redis.call('HSET', KEYS[1], number, text)
    end
    local was_on_offer = old and old.o == 1 and old.d <= now and not was_claimed
    if e and e.o == 1 and e.d <= now and not was_on_offer then fresh[#fresh + 1] = e.r end
  end
end

local after = best()
local changed = before ~= after and 1 or 0
local function float(number, text)
  local e = cjson.decode(text)
  for q = 5, 7 do redis.call('ZREM', KEYS[q], number) end
  redis.call('ZADD', queue(after or 0), bucket(after or 0) + e.s, number)
end
if changed == 1 then
  for _, number in ipairs(redis.call('ZRANGE', ARGV[2] .. '*', 0, -1)) do
    float(number, redis.call('HGET', KEYS[1], number))
  end
else
  for number, p in pairs(floated_with) do
    local text = p ~= (after or 0) and redis.call('ZSCORE', ARGV[2] .. '*', number) and redis.call('HGET', KEYS[1], number)
    if text then float(number, text) end
  end
end
return {#fresh, changed, #fresh > 0 and cjson.encode(fresh) or '[]'}
