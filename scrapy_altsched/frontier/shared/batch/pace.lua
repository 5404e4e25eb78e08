-- How hard download slots are asked, by all workers together.
--
-- A limit is a delay in ms, its jitter in thousandths, and a cap: how many requests of a slot are open at
-- most, which is leased and not downloaded; 0: any number.  The first worker brings those of the crawl; of
-- a single slot, the last delay that a worker tells holds.  A lease of a slot with a delay is a permit: its
-- request is started before VALID ms (see pace.py) are over since its worker has asked, or not with this permit.  The slot
-- rests as if it were started at the last moment, until the worker tells when it was.
local NEVER = math.huge
local RESTED_AT_ONCE = 200

local own, own_slots, told, started, downloaded, renewals, deferrals = unpack(pace, 1, 7)
local limits = meta[7] and cmsgpack.unpack(meta[7])
-- Of the server, and since when.
local run, restarted = meta[8] or '', tonumber(meta[9] or 0)
local is_paced = limits and true or false
local has_own = is_paced and redis.call('HLEN', SLOTS) > 0
-- Of slots that this call has touched.
local rests, open, limit_at = {}, {}, {}
local ticks, permits = {}, {}

-- Of one slot: delay, jitter, cap; until when it is deferred; whether one request is let through first then.
local function limit_of(slot)
    if not has_own then return limits end
    if limit_at[slot] == nil then
        local row = redis.call('HGET', SLOTS, slot)
        limit_at[slot] = row and cmsgpack.unpack(row) or limits
    end
    return limit_at[slot]
end

local function is_other(limit, one)
    return limit[1] ~= one[1] or limit[2] ~= one[2] or limit[3] ~= one[3]
end

local function set_limit(slot, limit)
    has_own = true
    limit_at[slot] = limit
    if is_other(limit, limits) or limit[5] or limit[4] > now then
        redis.call('HSET', SLOTS, slot, cmsgpack.pack(limit))
    else
        redis.call('HDEL', SLOTS, slot)
    end
end

-- Until when a slot may not be asked; false: it may be.
local function rest_of(slot)
    if rests[slot] == nil then
        local score = redis.call('ZSCORE', RESTING, slot)
        rests[slot] = score and (score == 'inf' and NEVER or tonumber(score)) or false
    end
    return rests[slot]
end

function is_resting(slot) return is_paced and rest_of(slot) ~= false end

local function open_of(slot)
    open[slot] = open[slot] or tonumber(redis.call('HGET', OPEN, slot) or 0)
    return open[slot]
end

local function is_at_cap(slot)
    local limit = limit_of(slot)
    local cap = limit[5] and 1 or limit[3]
    return cap > 0 and open_of(slot) >= cap
end

-- For how long a slot rests after the start of the request with this tick: the same for lease and report.
local function draw(slot, tick)
    local limit = limit_of(slot)
    return limit[1] * (1 + limit[2] / 1000 * (2 * (tick * 0.6180339887498949 % 1) - 1))
end

-- Until when a slot rests after a restart of the server: what was leased shortly before may be lost, and
-- started all the same.
local function quiet_until(slot)
    local limit = limit_of(slot)
    return math.ceil(restarted + VALID + limit[1] * (1 + limit[2] / 1000))
end

local function is_quiet(slot) return is_paced and restarted > 0 and now < quiet_until(slot) end

-- A slot has its turn after all others: a place by its name would let late names starve.
local function put_last(slot)
    n.tick = n.tick + 1
    loads[slot] = math.floor(load_of(slot) / LEASED_ONCE) * LEASED_ONCE + n.tick
end

local function wake(slot)
    rests[slot] = false
    put_last(slot)
    local found = redis.call('ZRANGEBYLEX', PENDING, '[' .. slot, '[' .. slot .. ('\255'):rep(12), 'LIMIT', 0, 1)
    if #found > 0 then queued[slot] = true end
end

-- Counts a request as open, and has its slot rest if that must be; its tick if that is a permit, or 0.
local function open_request(slot, tick)
    if not is_paced then return 0 end
    open[slot] = open_of(slot) + 1
    local has_delay = limit_of(slot)[1] > 0
    if has_delay then
        rests[slot] = math.ceil(now + VALID + draw(slot, tick))
    elseif is_at_cap(slot) then
        rests[slot] = NEVER
    end
    return has_delay and tick or 0
end

local function close_one(slot)
    open[slot] = math.max(0, open_of(slot) - 1)
    local limit = limit_of(slot)
    if limit[5] and now >= limit[4] then set_limit(slot, { limit[1], limit[2], limit[3], 0, false }) end
    if rest_of(slot) == NEVER and not is_at_cap(slot) then wake(slot) end
end

-- The end of a lease: if its request was downloaded, it is closed already.
function close_request(slot, key)
    if is_paced and redis.call('SREM', DOWNLOADED, key) == 0 then close_one(slot) end
end

local function rest_at_least(slot, until_)
    local rest = rest_of(slot)
    if not rest or rest == NEVER or rest < until_ then rests[slot] = until_ end
    load_of(slot)
end

local function store_pace()
    local idle, busy, awake, asleep = {}, {}, {}, {}
    for slot, count in pairs(open) do
        if count > 0 then
            busy[#busy + 1], busy[#busy + 2] = slot, digits(count)
        else
            idle[#idle + 1] = slot
        end
    end
    for slot, rest in pairs(rests) do
        if rest then
            asleep[#asleep + 1], asleep[#asleep + 2] = rest == NEVER and '+inf' or digits(rest), slot
        else
            awake[#awake + 1] = slot
        end
    end
    call_with('HDEL', OPEN, idle)
    call_with('HSET', OPEN, busy)
    call_with('ZREM', RESTING, awake)
    call_with('ZADD', RESTING, asleep)
end

-- Lets slots be asked whose rest is over, some at a time.
local function end_rests()
    if not is_paced then return end
    store_pace()
    local over = redis.call('ZRANGEBYSCORE', RESTING, '-inf', digits(now), 'LIMIT', 0, RESTED_AT_ONCE)
    for _, slot in ipairs(over) do
        if is_at_cap(slot) then
            rests[slot] = NEVER
        else
            wake(slot)
        end
    end
    if n.leased == 0 then
        -- Leases whose key went missing have closed nothing.
        for _, slot in ipairs(redis.call('ZRANGEBYSCORE', RESTING, '+inf', '+inf', 'LIMIT', 0, RESTED_AT_ONCE)) do
            open[slot] = 0
            wake(slot)
        end
    end
end

-- New permits for leases of this worker whose own was over too soon, or that are to be open again.
local function renew_permits()
    for _, key in ipairs(renewals) do
        local slot = key:sub(1, 8)
        if redis.call('HEXISTS', LEASES, key) == 0 then
            void[#void + 1] = key
        elseif not is_paced then
            permits[#permits + 1], permits[#permits + 2] = key, 0
        elseif not is_quiet(slot) then
            local rest = rest_of(slot)
            local is_closed = redis.call('SISMEMBER', DOWNLOADED, key) == 1
            local is_due = not rest or rest <= now or rest == NEVER
            if is_due and not (is_closed and is_at_cap(slot)) then
                if is_closed then
                    redis.call('SREM', DOWNLOADED, key)
                else
                    open[slot] = math.max(0, open_of(slot) - 1)
                end
                put_last(slot)
                permits[#permits + 1], permits[#permits + 2] = key, open_request(slot, n.tick)
            end
        end
    end
end

-- For how many ms nothing more may be leased than now; false: that is not known.
local function next_rest_in()
    if not is_paced then return false end
    local first = redis.call('ZRANGE', RESTING, 0, 0, 'WITHSCORES')[2]
    return first and first ~= 'inf' and math.max(0, math.ceil(tonumber(first) - now))
end

local function describe_pace()
    return { limits = cmsgpack.pack(limits), run = run, restarted = digits(restarted) }
end
