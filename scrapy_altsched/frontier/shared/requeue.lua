-- Dead letters, or failed requests, of a crawl are pending again, each at its old place.  What the
-- keys hold is said in batch/entering.lua; all that are touched are declared in KEYS.  A crawl
-- that is finished is open again.

local META, PENDING, READY, BUSY, RESTING, SOURCE = unpack(KEYS, 1, 6)
local crawl, chosen = ARGV[1], cmsgpack.unpack(ARGV[2])

if redis.call('HGET', META, 'crawl') ~= crawl then
    return -1
end

-- Takes out what was chosen: what is pending instead, if it was still there.  A removal is refused by
-- no server that is full, nor is anything after it.
local dead = 0
local function take(it)
    if type(it) == 'table' then
        return redis.call('ZREM', SOURCE, it[1]) == 1 and it[2]
    end
    local letter = redis.call('HGET', SOURCE, it)
    if not letter then return false end
    redis.call('HDEL', SOURCE, it)
    dead = dead + 1
    return it .. cmsgpack.unpack(letter)[2]
end

local count = 0
for _, it in ipairs(chosen) do
    local member = take(it)
    if member then
        local slot = member:sub(1, 8)
        local load = redis.call('HGET', BUSY, slot) or redis.call('ZSCORE', READY, slot) or '0'
        redis.call('ZADD', PENDING, 0, member)
        -- One that rests comes back by itself.
        if not redis.call('ZSCORE', RESTING, slot) then redis.call('ZADD', READY, load, slot) end
        count = count + 1
    end
end
if count > 0 then
    if dead > 0 then redis.call('HINCRBY', META, 'dead', -dead) end
    redis.call('HINCRBY', META, 'version', 1)
    redis.call('HSET', META, 'state', 'open')
end
return count
