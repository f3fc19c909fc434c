-- Run commands and scripts in a row, with nothing of anybody else's in between. One that fails stops no other.
-- In front of this text stands `local scripts = {…}`: functions of KEYS and ARGV, one a script.
-- KEYS: 1 a name that nothing is kept under
-- ARGV, again and again: length, command and its arguments; or 0, script, number of keys, number of the rest, all these
-- Returns: {the first failure or '', answer of the first script, …}

-- Changes nothing, and is refused by a Redis that is full or takes no writes. Later it would be too late: a script that
-- has taken something out may go on to put in more, and half of this would be done.
redis.call('SETRANGE', KEYS[1], 0, '')

local out = { '' }
local at = 1

local function fail(problem)
  if out[1] == '' then out[1] = type(problem) == 'table' and problem.err or tostring(problem) end
end

local function slice(from, length)
  local part = {}
  for i = 1, length do part[i] = ARGV[from + i - 1] end
  return part
end

while at <= #ARGV do
  local length = tonumber(ARGV[at])
  if length > 0 then
    local answer = redis.pcall(unpack(ARGV, at + 1, at + length))
    if type(answer) == 'table' and answer.err then fail(answer) end
    at = at + 1 + length
  else
    local script, keys, rest = scripts[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    local ok, answer = pcall(script, slice(at + 4, keys), slice(at + 4 + keys, rest))
    if not ok then fail(answer) end
    out[#out + 1] = ok and answer or false
    at = at + 4 + keys + rest
  end
end
return out
