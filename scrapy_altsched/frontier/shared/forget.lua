-- Seen keys of a crawl are removed, and its workers told not to remember any.  What the keys hold is
-- said in batch/entering.lua; all that are touched are declared in KEYS.

local META = KEYS[1]
local crawl, chosen = ARGV[1], cmsgpack.unpack(ARGV[2])

if redis.call('HGET', META, 'crawl') ~= crawl then
    return -1
end

local count = 0
for i = 1, #chosen, 2 do
    count = count + redis.call('HDEL', KEYS[chosen[i]], chosen[i + 1])
end
if count > 0 then
    redis.call('HINCRBY', META, 'epoch', 1)
    redis.call('HINCRBY', META, 'version', 1)
    if redis.call('HEXISTS', META, 'seen') == 1 then redis.call('HINCRBY', META, 'seen', -count) end
end
return count
