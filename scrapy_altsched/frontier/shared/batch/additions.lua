-- New requests.
local added, delayed = {}, {}

-- Makes a request pending; *order*: the beginning of its order key.
local function enqueue(slot, order, is_inverted, row)
    local place = is_inverted and LAST_SEQUENCE - n.sequence or n.sequence
    n.sequence = n.sequence + 1
    added[#added + 1], added[#added + 2] = 0, slot .. order .. struct.pack('>I8', place) .. row
    load_of(slot)
    queued[slot] = true
end

-- The same once it is due: so many ms from now, and not before a time.
local function accept(slot, order, is_inverted, row, delay, not_before)
    local due = math.max(now + delay, not_before)
    if due > now then
        local member = struct.pack('>I8', n.sequence) .. (is_inverted and '\1' or '\0') .. slot .. order .. row
        n.sequence = n.sequence + 1
        delayed[#delayed + 1], delayed[#delayed + 2] = digits(due), member
    else
        enqueue(slot, order, is_inverted, row)
    end
    n.accepted = n.accepted + 1
    changed = true
end

local function store_accepted()
    call_with('ZADD', PENDING, added)
    call_with('ZADD', DELAYED, delayed)
    added, delayed = {}, {}
end

-- Whether a slot has had as many unique requests as it may.
local counts = {}
local function is_over_budget(slot)
    counts[slot] = counts[slot] or tonumber(redis.call('HGET', BUDGETS, slot) or 0)
    return counts[slot] >= budget
end

local function count_for_budget(slot)
    counts[slot] = counts[slot] + 1
    redis.call('HSET', BUDGETS, slot, digits(counts[slot]))
end

local function count_seen(more)
    if n.seen then n.seen = n.seen + more end
end

for i = 1, #adds, 10 do
    local kind, bucket, field = adds[i + 1], KEYS[adds[i + 2]], adds[i + 3]
    local is_seen, is_over = false, false
    local slot, row = adds[i + 4], adds[i + 7]
    -- The first bit of a row says whether it is unique: see encode_value in store/states.py.  The seen key of one
    -- that is not is the claim to a start request.
    local is_unique = (row:byte(1) or 1) % 2 == 1
    local is_counted = budget > 0 and kind == UNIQUE and not is_full and is_unique
    local is_again = ages and is_due(adds[i], bucket, field)
    if is_counted and is_over_budget(slot) then
        is_seen = not is_again and redis.call('HEXISTS', bucket, field) == 1
        is_over = not is_seen
    elseif kind == FORGET then
        is_seen = redis.call('HDEL', bucket, field) == 0
        n.epoch = n.epoch + (is_seen and 0 or 1)
        count_seen(is_seen and 0 or -1)
    elseif kind == CHECK or is_full and kind ~= ANY then
        is_seen = not is_again and redis.call('HEXISTS', bucket, field) == 1
    elseif is_again then
        redis.call('HSET', bucket, field, age)
    elseif kind ~= ANY then
        is_seen = redis.call('HSETNX', bucket, field, age) == 0
        count_seen((is_seen or not is_unique) and 0 or 1)
    end
    if is_seen then
        seen[#seen + 1] = adds[i]
    elseif is_over then
        over[#over + 1] = adds[i]
    elseif is_full and kind ~= CHECK and kind ~= FORGET then
        full[#full + 1] = adds[i]
    elseif kind == UNIQUE or kind == ANY then
        accept(unpack(adds, i + 4, i + 9))
        if is_counted then count_for_budget(slot) end
    end
end

store_accepted()
