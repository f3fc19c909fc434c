-- Bring what Redis shows of single issues in line with their rows. What is right already is read and not written:
-- every byte written goes to the append-only file as well, and Redis stops for a moment whenever it rewrites that.
-- KEYS: none, the stems below take a number
-- ARGV: 1 issue stem, 2 review detected stem, 3 review delay stem, 4 status stem, 5 metadata stem, 6 repository,
--       7 now (ISO), 8 seconds for which a closed issue still shows how it ended,
--       then seven for each issue: number, GitHub's JSON ('' if it is not open), its status ('' if there is nothing to do
--       about it), time at which a review was asked for ('' none), title, address, labels (JSON)
local FIRST, WIDTH = 9, 7

local function hold(key, text)
  -- A key of another type is an error here and overwritten as any other value is.
  if redis.pcall('GET', key) ~= text then redis.call('SET', key, text) else redis.call('PERSIST', key) end
end

for i = FIRST, #ARGV, WIDTH do
  local number, raw, status, detected_at = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local issue, detected, delay = ARGV[1] .. number, ARGV[2] .. number, ARGV[3] .. number
  local status_key, metadata = ARGV[4] .. number, ARGV[5] .. number
  if raw == '' then
    redis.call('DEL', issue, detected, delay)
    if status == '' then
      redis.call('EXPIRE', status_key, ARGV[8])
      redis.call('EXPIRE', metadata, ARGV[8])
    end
  else
    hold(issue, raw)
    if detected_at == '' then
      redis.call('DEL', detected, delay)
    else
      hold(detected, detected_at)
      hold(delay, detected_at)
    end
    if status ~= '' then
      -- A status that is there stays: its changes are told as they happen.
      redis.call('HSETNX', status_key, 'status', status)
      redis.call('HSETNX', status_key, 'updatedAt', ARGV[7])
      local title, url, labels = ARGV[i + 4], ARGV[i + 5], ARGV[i + 6]
      local held = redis.call('HMGET', metadata, 'title', 'url', 'labels', 'repository')
      if held[1] ~= title or held[2] ~= url or held[3] ~= labels or held[4] ~= ARGV[6] then
        redis.call('HSET', metadata, 'title', title, 'url', url, 'labels', labels, 'repository', ARGV[6])
      end
    end
  end
end
return 1
