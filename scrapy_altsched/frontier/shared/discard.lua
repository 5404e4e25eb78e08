-- Pending and delayed requests of a crawl are dropped, as if they had never been accepted; their pages
-- stay seen.  What the keys hold is said in batch/entering.lua; all that are touched are declared in
-- KEYS.

local META, PENDING, READY, BUDGETS, SUSPECTS = KEYS[1], KEYS[2], KEYS[3], KEYS[5], KEYS[6]
local crawl, chosen = ARGV[1], cmsgpack.unpack(ARGV[2])

if redis.call('HGET', META, 'crawl') ~= crawl then
    return -1
end

-- A removal is refused by no server that is full, nor is anything after it.
local count, slots = 0, {}
for _, it in ipairs(chosen) do
    local from, member, slot, is_unique, fingerprint = unpack(it)
    if redis.call('ZREM', KEYS[from], member) == 1 then
        count = count + 1
        slots[slot] = (slots[slot] or 0) + (is_unique and 1 or 0)
        redis.call('HDEL', SUSPECTS, fingerprint)
    end
end
for slot, unique in pairs(slots) do
    if #redis.call('ZRANGEBYLEX', PENDING, '[' .. slot, '[' .. slot .. ('\255'):rep(12), 'LIMIT', 0, 1) == 0 then
        redis.call('ZREM', READY, slot)
    end
    local budget = tonumber(redis.call('HGET', BUDGETS, slot) or 0)
    if budget > 0 then redis.call('HSET', BUDGETS, slot, string.format('%.0f', math.max(0, budget - unique))) end
end
if count > 0 then
    redis.call('HINCRBY', META, 'accepted', -count)
    redis.call('HINCRBY', META, 'version', 1)
end
return count
