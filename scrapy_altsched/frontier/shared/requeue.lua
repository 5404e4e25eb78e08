-- Dead letters of a crawl are pending again, each at its old place.  What the keys hold is said at
-- the head of shared.lua; all that are touched are declared in KEYS.  A crawl that is finished is
-- open again.

local META, PENDING, READY, BUSY, DEAD = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local crawl, chosen = ARGV[1], cmsgpack.unpack(ARGV[2])

if redis.call('HGET', META, 'crawl') ~= crawl then
    return -1
end

local count = 0
for _, key in ipairs(chosen) do
    local letter = redis.call('HGET', DEAD, key)
    if letter then
        -- A removal, which a full server does not refuse, nor anything after it.
        redis.call('HDEL', DEAD, key)
        local slot = key:sub(1, 8)
        local load = redis.call('HGET', BUSY, slot) or redis.call('ZSCORE', READY, slot) or '0'
        redis.call('ZADD', PENDING, 0, key .. cmsgpack.unpack(letter)[2])
        redis.call('ZADD', READY, load, slot)
        count = count + 1
    end
end
if count > 0 then
    redis.call('HINCRBY', META, 'dead', -count)
    redis.call('HINCRBY', META, 'version', 1)
    redis.call('HSET', META, 'state', 'open')
end
return count
