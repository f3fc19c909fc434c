-- Bring what Redis shows of single issues in line with their rows. What is right already is read and not written:
-- every byte written goes to the append-only file as well, and Redis stops for a moment whenever it rewrites that.
-- KEYS: five for each issue: issue, review detected, review delay, status, metadata
-- ARGV: 1 repository, 2 now (ISO), 3 seconds for which a closed issue still shows how it ended,
--       then six for each issue: GitHub's JSON ('' if it is not open), its status ('' if there is nothing to do about
--       it), time at which a review was asked for ('' none), title, address, labels (JSON)

local function hold(key, text)
  -- A key of another type is an error here and overwritten as any other value is.
  if redis.pcall('GET', key) ~= text then redis.call('SET', key, text) else redis.call('PERSIST', key) end
end

for n = 0, #KEYS / 5 - 1 do
  local issue, detected, delay, status_key, metadata = unpack(KEYS, 5 * n + 1, 5 * n + 5)
  local raw, status, detected_at, title, url, labels = unpack(ARGV, 6 * n + 4, 6 * n + 9)
  if raw == '' then
    redis.call('DEL', issue, detected, delay)
    if status == '' then
      redis.call('EXPIRE', status_key, ARGV[3])
      redis.call('EXPIRE', metadata, ARGV[3])
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
      redis.call('HSETNX', status_key, 'updatedAt', ARGV[2])
      local held = redis.call('HMGET', metadata, 'title', 'url', 'labels', 'repository')
      if held[1] ~= title or held[2] ~= url or held[3] ~= labels or held[4] ~= ARGV[1] then
        redis.call('HSET', metadata, 'title', title, 'url', url, 'labels', labels, 'repository', ARGV[1])
      end
    end
  end
end
return 1
