-- Replaces the samples of a crawl by fewer, and has later ones taken half as often: once, by one of
-- those that have read them.  What the keys hold is said in batch/entering.lua.

local HISTORY, SAMPLES = unpack(KEYS)
local crawl, grain, kept = ARGV[1], ARGV[2], cmsgpack.unpack(ARGV[3])

local found = redis.call('HMGET', HISTORY, 'crawl', 'grain')
if found[1] ~= crawl or found[2] ~= grain then return 0 end

-- A removal is refused by no server that is full, nor is anything after it.
redis.call('DEL', SAMPLES)
for i = 1, #kept, 1000 do
    redis.call('RPUSH', SAMPLES, unpack(kept, i, math.min(i + 999, #kept)))
end
redis.call('HSET', HISTORY, 'grain', string.format('%.0f', 2 * grain))
return #kept
