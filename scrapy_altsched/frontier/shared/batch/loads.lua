-- Loads of slots, and requests that go back to the queues of theirs.

-- Loads of slots that this call has touched, and whether they have pending requests; nil: as before.
local loads, queued = {}, {}

-- Whether a slot may not be asked now; and that one of its requests is not open any more: see pace.lua.
local is_resting, close_request

-- A slot that is in neither has load 0.
local function load_of(slot)
    loads[slot] = loads[slot] or tonumber(redis.call('HGET', BUSY, slot) or redis.call('ZSCORE', READY, slot) or 0)
    return loads[slot]
end

local function store_loads()
    local idle, busy, ready, unchanged, emptied = {}, {}, {}, {}, {}
    for slot, load in pairs(loads) do
        if load < LEASED_ONCE then
            idle[#idle + 1] = slot
        else
            busy[#busy + 1], busy[#busy + 2] = slot, digits(load)
        end
        if queued[slot] == false or is_resting(slot) then
            emptied[#emptied + 1] = slot
        else
            local of = queued[slot] and ready or unchanged
            of[#of + 1], of[#of + 2] = digits(load), slot
        end
    end
    call_with('HDEL', BUSY, idle)
    call_with('HSET', BUSY, busy)
    call_with('ZREM', READY, emptied)
    call_with('ZADD', READY, ready)
    for i = 1, #unchanged, 1000 do
        redis.call('ZADD', READY, 'XX', unpack(unchanged, i, math.min(i + 999, #unchanged)))
    end
    loads, queued = {}, {}
end

local function end_lease(key)
    local slot = key:sub(1, 8)
    loads[slot] = load_of(slot) - LEASED_ONCE
    close_request(slot, key)
    n.leased = n.leased - 1
    changed = true
    return slot
end

local function put_back(key, row)
    redis.call('ZADD', PENDING, 0, key .. row)
    queued[end_lease(key)] = true
end

local function fingerprint_of(row) return row:sub(3, 2 + row:byte(2)) end

-- Puts back what is leased, but for keys that are in *kept*, which are this worker's from now on;
-- fingerprints of what was put back.
local function put_back_all(from, limit, kept)
    local rows = limit and redis.call('HSCAN', from, 0, 'COUNT', limit)[2] or redis.call('HGETALL', from)
    local put = {}
    for i = 1, #rows, 2 do
        local key, row = rows[i], rows[i + 1]
        if #put == limit then
            break
        elseif not (kept and kept[key]) then
            redis.call('HDEL', from, key)
            put_back(key, row)
            put[#put + 1] = fingerprint_of(row)
        else
            redis.call('HDEL', from, key)
            redis.call('HSET', LEASES, key, row)
            kept[key] = 'found'
        end
    end
    return put
end
