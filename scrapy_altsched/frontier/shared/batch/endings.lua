-- Endings.  One that rests on a request that was refused for want of memory waits for it.
local function rests_on_refused(after, upto)
    for _, refused in ipairs(full) do
        if refused > after and refused <= upto then return true end
    end
    return false
end

local has_failed = false
for i = 1, #endings, 6 do
    local key, kind = endings[i], endings[i + 1]
    if rests_on_refused(endings[i + 2], endings[i + 3]) then
        skipped[#skipped + 1] = key
    else
        local row = (kind ~= DONE or is_careful) and redis.call('HGET', LEASES, key)
        if redis.call('HDEL', LEASES, key) == 0 then
            void[#void + 1] = key
        elseif kind == RELEASED then
            put_back(key, row)
        else
            end_lease(key)
            if is_careful then redis.call('HDEL', SUSPECTS, fingerprint_of(row)) end
            if kind == DONE then
                n.done = n.done + 1
                if finishing[key] then finish_page(unpack(finishing[key])) end
                -- What follows it is accepted in the same step, or not at all.
                if endings[i + 5] then accept(unpack(endings[i + 5])) end
            elseif kind == FAILS then
                local member = struct.pack('>I4', #key) .. key .. endings[i + 4] .. row
                redis.call('ZADD', FAILED, digits(now), member)
                has_failed = true
            else
                redis.call('HSET', DEAD, key, cmsgpack.pack({ endings[i + 4], row }))
                n.dead = n.dead + 1
            end
        end
    end
end

store_accepted()

-- Of too many failed requests, the oldest go, a tenth of them at once.
if has_failed then
    local excess = redis.call('ZCARD', FAILED) - keep_failed
    if excess > 0 then
        local dropped = redis.call('ZREMRANGEBYRANK', FAILED, 0, excess - 1 + math.floor(keep_failed / 10))
        n.done, n.dropped = n.done + dropped, n.dropped + dropped
    end
end

for i = 1, #judged, 2 do hold_against(judged[i], judged[i + 1]) end
