-- Leases of this worker: those that are missing, and those that it takes over.

-- Leases whose key went missing are no longer leased, and are in no state then.  How many another
-- worker holds is not known any more once some of its leases have gone elsewhere.
local function drop_missing(whose, from)
    local held = tonumber(redis.call('HGET', META, HELD .. whose) or 0)
    redis.call('HDEL', META, HELD .. whose)
    if held > 0 and redis.call('HLEN', from) == 0 and redis.call('ZSCORE', DEADLINES, whose) then
        n.leased = n.leased - held
        changed = true
    end
end

drop_missing(token, LEASES)

-- Workers come, and most do not come back.  One that does after all that time is told GAP.
if number == 1 then
    local silent = redis.call('ZRANGEBYSCORE', HEARD, '-inf', digits(now - REMEMBERED), 'LIMIT', 0, FORGET_AT_ONCE)
    for _, who in ipairs(silent) do
        if who ~= token and not redis.call('ZSCORE', DEADLINES, who) then
            redis.call('ZREM', HEARD, who)
            redis.call('HDEL', WORKERS, who)
            redis.call('HDEL', SUSPECTS, 'was:' .. who)
        end
    end
end

-- A worker that lost its history says which leases it keeps; one that was started again keeps all.
local keys, rows = {}, {}
if adopt then
    local old, wanted, asked = adopt[1], adopt[2], adopt[3]
    local kept = {}
    for _, key in ipairs(wanted or {}) do kept[key] = 'wanted' end
    if wanted then put_back_all(LEASES, nil, kept) end
    for i = 1, #old, 2 do
        local from = KEYS[old[i + 1]]
        take_back_judgement(old[i])
        drop_missing(old[i], from)
        if wanted or is_paced then
            -- What was in flight is not any more, and asks again for its turn.
            put_back_all(from, nil, kept)
        else
            local all = redis.call('HGETALL', from)
            redis.call('DEL', from)
            for at = 1, #all, 2 do
                redis.call('HSET', LEASES, all[at], all[at + 1])
                keys[#keys + 1], rows[#rows + 1] = all[at], all[at + 1]
            end
        end
        redis.call('ZREM', DEADLINES, old[i])
        redis.call('ZREM', FEEDING, old[i])
        redis.call('HSET', WORKERS, old[i], struct.pack('>I8', SUPERSEDED))
        redis.call('ZADD', HEARD, digits(now), old[i])
    end
    for key, found in pairs(kept) do
        if found ~= 'found' then void[#void + 1] = key end
    end
    for _, fingerprint in ipairs(is_careful and asked or {}) do tell_of(fingerprint) end
end
