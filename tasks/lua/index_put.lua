-- Put entries into the offer index, or take them out; says what came on offer.
-- KEYS: 1 entries, 2 open, 3 waiting, 4 claimed, 5 queue high, 6 queue normal, 7 queue low
-- ARGV: 1 offer stem, 2 float stem, 3 working stem, 4 now (seconds), 5 write what is unchanged, too (0/1),
--       then pairs: number, entry (JSON; '' removes)
-- An entry: k counted priority (-1 none), p priority of the offer (-1: floats), s order inside the bucket,
--           r roles, d due (seconds, 0 at once), o on offer (0/1), w labels while in progress
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

local function take_out(number, e)
  if e.o == 1 then
    local stem = e.p < 0 and ARGV[2] or ARGV[1]
    for _, role in ipairs(e.r) do redis.call('ZREM', stem .. role, number) end
    redis.call('ZREM', stem .. '*', number)
    redis.call('ZREM', KEYS[3], number)
    redis.call('ZREM', KEYS[5], number)
    redis.call('ZREM', KEYS[6], number)
    redis.call('ZREM', KEYS[7], number)
  end
  for _, label in ipairs(e.w) do redis.call('SREM', ARGV[3] .. label, number) end
end

local function offer(number, e, top)
  local stem, score = ARGV[1], e.s
  if e.p < 0 then stem = ARGV[2] else score = bucket(e.p) + e.s end
  for _, role in ipairs(e.r) do redis.call('ZADD', stem .. role, score, number) end
  redis.call('ZADD', stem .. '*', score, number)
  local p = e.p
  if p < 0 then p = top or 0 end
  redis.call('ZADD', queue(p), bucket(p) + e.s, number)
end

local before = best()
local fresh = {}
for i = 6, #ARGV, 2 do
  local number, text = ARGV[i], ARGV[i + 1]
  local old_text = redis.call('HGET', KEYS[1], number)
  local was_claimed = redis.call('ZREM', KEYS[4], number) == 1
  local is_as_before = old_text == text and not was_claimed and ARGV[5] == '0'
  local was_on_offer = false
  if old_text and not is_as_before then
    local old = cjson.decode(old_text)
    was_on_offer = old.o == 1 and old.d <= now and not was_claimed
    take_out(number, old)
    if old.k >= 0 and redis.call('HINCRBY', KEYS[2], old.k, -1) <= 0 then redis.call('HDEL', KEYS[2], old.k) end
  end
  if is_as_before then
    -- It stands where it belongs already.
  elseif text == '' then
    redis.call('HDEL', KEYS[1], number)
  else
    local e = cjson.decode(text)
    redis.call('HSET', KEYS[1], number, text)
    if e.k >= 0 then redis.call('HINCRBY', KEYS[2], e.k, 1) end
    for _, label in ipairs(e.w) do redis.call('SADD', ARGV[3] .. label, number) end
    if e.o == 1 then
      if e.d > now then
        redis.call('ZADD', KEYS[3], e.d, number)
      else
        offer(number, e, e.p < 0 and best() or nil)
        if not was_on_offer then fresh[#fresh + 1] = e.r end
      end
    end
  end
end

local after = best()
local changed = 0
if before ~= after then
  changed = 1
  -- What has no priority of its own moves with the best bucket.
  for _, number in ipairs(redis.call('ZRANGE', ARGV[2] .. '*', 0, -1)) do
    local e = cjson.decode(redis.call('HGET', KEYS[1], number))
    for q = 5, 7 do redis.call('ZREM', KEYS[q], number) end
    redis.call('ZADD', queue(after or 0), bucket(after or 0) + e.s, number)
  end
end
return {#fresh, changed, #fresh > 0 and cjson.encode(fresh) or '[]'}
