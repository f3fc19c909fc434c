-- Change single issues inside the JSON array `open_issues` without writing it anew.
-- Each issue stands in a slot with spare white space behind it; JSON does not mind. Commas belong to the slots.
-- An issue that stands there as it is to stand is not written again.
-- KEYS: 1 open_issues, 2 slots (number → offset:length); ARGV: 1 spare bytes, then pairs: number, JSON ('' removes)
-- Returns 1, or 0 if the array must be written anew: an issue did not fit and stands there as it was.
local total = redis.call('STRLEN', KEYS[1])
if total < 2 then return 0 end
local spare = tonumber(ARGV[1])
local all_fit = 1
for i = 2, #ARGV, 2 do
  local number, text = ARGV[i], ARGV[i + 1]
  local slot = redis.call('HGET', KEYS[2], number)
  local written = false
  if slot then
    local offset, length = string.match(slot, '^(%d+):(%d+)$')
    offset, length = tonumber(offset), tonumber(length)
    if offset == 1 and (text == '' or #text + 1 > length) then
      -- The first slot has no comma before it: when it goes, the next one would begin with a comma.
      all_fit, written = 0, true
    elseif text ~= '' and #text + 1 <= length then
      local lead = offset == 1 and ' ' or ','
      local wanted = lead .. text .. string.rep(' ', length - #text - 1)
      if redis.call('GETRANGE', KEYS[1], offset, offset + length - 1) ~= wanted then
        redis.call('SETRANGE', KEYS[1], offset, wanted)
      end
      written = true
    else
      redis.call('SETRANGE', KEYS[1], offset, string.rep(' ', length))
      redis.call('HDEL', KEYS[2], number)
    end
  end
  if text ~= '' and not written then
    local offset = total - 1
    local lead = (redis.call('HLEN', KEYS[2]) == 0 and offset == 1) and ' ' or ','
    if redis.call('HLEN', KEYS[2]) == 0 and offset > 1 then
      -- Every slot was emptied: begin again.
      redis.call('SET', KEYS[1], '[]')
      offset, lead = 1, ' '
    end
    local length = #text + 1 + spare
    redis.call('SETRANGE', KEYS[1], offset, lead .. text .. string.rep(' ', spare) .. ']')
    redis.call('HSET', KEYS[2], number, offset .. ':' .. length)
    total = offset + length + 1
  end
end
return all_fit
