-- Whose limits hold, and what the worker tells of downloads.

-- A worker that comes while no other one is there brings the limits of the crawl, or none.
local is_alone, differing = false, 0
if number == 1 and is_paced and not (adopt and adopt[2]) then
    local mine = 0
    for i = 1, adopt and #adopt[1] or 0, 2 do
        if redis.call('ZSCORE', DEADLINES, adopt[1][i]) then mine = mine + 1 end
    end
    is_alone = redis.call('ZCARD', DEADLINES) <= mine
end

local function forget_pace()
    for _, slot in ipairs(redis.call('ZRANGE', RESTING, 0, -1)) do wake(slot) end
    redis.call('DEL', RESTING, SLOTS, OPEN, DOWNLOADED)
    redis.call('HDEL', META, 'limits', 'run', 'restarted')
    rests, open, limits, is_paced, has_own = {}, {}, nil, false, false
end

local function begin_pace()
    limits, is_paced = limits or { own[1], own[2], own[3] }, true
end

local function bring_limits()
    local deferred = redis.call('HGETALL', SLOTS)
    redis.call('DEL', SLOTS)
    limits, limit_at = nil, {}
    begin_pace()
    for i = 1, #own_slots, 2 do
        local limit = own_slots[i + 1]
        set_limit(own_slots[i], { limit[1], limit[2], limit[3], 0, false })
    end
    for i = 1, #deferred, 2 do
        local was, limit = cmsgpack.unpack(deferred[i + 1]), limit_of(deferred[i])
        if was[4] > now then set_limit(deferred[i], { limit[1], limit[2], limit[3], was[4], was[5] }) end
    end
    for _, slot in ipairs(redis.call('ZRANGEBYSCORE', RESTING, '+inf', '+inf')) do
        if not is_at_cap(slot) then wake(slot) end
    end
end

if own == 'off' then
    if is_alone then forget_pace() end
elseif number == 1 and own and (is_alone or not is_paced and own[4]) then
    bring_limits()
elseif number == 1 and is_paced then
    for i = 1, #own_slots, 2 do
        if is_other(limit_of(own_slots[i]), own_slots[i + 1]) then differing = differing + 1 end
    end
end
-- An operator who defers a slot begins the pace that any worker would have begun.
if number == 1 and type(own) == 'table' then
    redis.call('HSET', META, 'brought', cmsgpack.pack({ own[1], own[2], own[3] }))
elseif number == 1 and own == 'off' then
    redis.call('HDEL', META, 'brought')
elseif number == 1 and not is_paced and #deferrals > 0 and deferrals[2] >= 0 then
    local brought = redis.call('HGET', META, 'brought')
    own = brought and cmsgpack.unpack(brought)
end
-- A worker that has no limits to begin with knew of a pace that the server has lost.
if not is_paced and type(own) ~= 'table' then told, deferrals = {}, {} end
if #told > 0 or #deferrals > 0 then begin_pace() end
if is_paced then
    local found = run_id()
    if run ~= '' and run ~= found then restarted = now end
    run = found
end
for i = 1, #told, 2 do
    local before, delay = limit_of(told[i]), told[i + 1]
    set_limit(told[i], { delay, before[2], before[3], before[4] or 0, before[5] or false })
    -- It may have been asked just now, and be asked once more by what was leased before.
    if before[1] == 0 and delay > 0 then rest_at_least(told[i], now + 2 * delay) end
end
for i = 1, #deferrals, 2 do
    local slot, limit, wait = deferrals[i], limit_of(deferrals[i]), deferrals[i + 1]
    if wait >= 0 then
        local until_ = math.max(now + wait, limit[4] or 0)
        set_limit(slot, { limit[1], limit[2], limit[3], until_, true })
        rest_at_least(slot, until_)
    else
        -- It may have been asked just now.
        set_limit(slot, { limit[1], limit[2], limit[3], 0, false })
        local rest = rest_of(slot)
        if rest and rest ~= NEVER then rests[slot] = math.min(rest, now + limit[1]) end
    end
end
for i = 1, #started, 3 do
    local slot, tick = started[i]:sub(1, 8), started[i + 1]
    local rest = is_paced and rest_of(slot)
    if rest and rest ~= NEVER and load_of(slot) % LEASED_ONCE == tick then
        local ago = started[i + 2]
        -- A permit that was not used is as if it had not been given.
        local after = ago < 0 and now or math.ceil(now - ago + draw(slot, tick))
        rests[slot] = math.max(after, limit_of(slot)[4] or 0)
    end
end
for _, key in ipairs(downloaded) do
    if is_paced and redis.call('HEXISTS', LEASES, key) == 1 and redis.call('SADD', DOWNLOADED, key) == 1 then
        close_one(key:sub(1, 8))
    end
end
