-- Who handles a request that all listeners hear: the first one, and the same one again if it is repeated.
-- KEYS: 1 record of the request, 2 this listener's sign of life
-- ARGV: 1 this listener, 2 stem of the signs of life, 3 record seconds, 4 life seconds
-- Returns {'handle'} | {'repeat', response} | {'leave'}: another listener, which is alive, has it
-- A listener hears each publication once: hearing of an id that it has answered itself is a repetition.
-- Also after a Redis that forgot everything: whoever has a request is known to live.
redis.call('SET', KEYS[2], '1', 'EX', ARGV[4])
local text = redis.call('GET', KEYS[1])
local record = text and cjson.decode(text) or {}
if record.listener and record.listener ~= ARGV[1]
    and redis.call('EXISTS', ARGV[2] .. record.listener) == 1 then
  return {'leave'}
end
record.listener = ARGV[1]
redis.call('SET', KEYS[1], cjson.encode(record), 'EX', ARGV[3])
if record.response then return {'repeat', record.response} end
return {'handle'}
