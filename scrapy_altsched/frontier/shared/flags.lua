-- Pauses a crawl, has it go on, or tells its workers to end.  What the keys hold is said in
-- batch/entering.lua.

local META, DEADLINES = unpack(KEYS)
local crawl, verb, protocol = unpack(ARGV)

if redis.call('HGET', META, 'crawl') ~= crawl then
    return -1
end

-- A removal is refused by no server that is full, nor is anything after it.
redis.call('HDEL', META, '')
local now = string.format('%.0f', clock())
if verb == 'pause' then
    if tonumber(redis.call('HGET', META, 'protocol')) < tonumber(protocol) then
        redis.call('HSET', META, 'protocol', protocol)
    end
    return redis.call('HSETNX', META, 'paused', now)
elseif verb == 'resume' then
    -- The next batch of any worker says which version the keys need now.
    return redis.call('HDEL', META, 'paused')
end
redis.call('HINCRBY', META, 'stops', 1)
return redis.call('ZCOUNT', DEADLINES, now, '+inf')
