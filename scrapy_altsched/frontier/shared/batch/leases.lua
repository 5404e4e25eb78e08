-- Leases of a worker that was not heard of go back, some at a time.
if overdue then
    local who, from = overdue[1], KEYS[overdue[2]]
    local deadline = redis.call('ZSCORE', DEADLINES, who)
    if deadline and tonumber(deadline) < now then
        drop_missing(who, from)
        local put = put_back_all(from, EXPIRE_AT_ONCE)
        local its_record = redis.call('HGET', WORKERS, who)
        if its_record and #its_record > 8 then
            local its_watched = cmsgpack.unpack(its_record:sub(9))[14]
            local before = redis.call('HGET', SUSPECTS, 'was:' .. who)
            before = before and cmsgpack.unpack(before) or {}
            judge(put, its_watched[1], its_watched[2], before)
            if #before > 0 then
                redis.call('HSET', SUSPECTS, 'was:' .. who, cmsgpack.pack(before))
            end
        end
        if redis.call('HLEN', from) == 0 then
            redis.call('ZREM', DEADLINES, who)
            changed = redis.call('ZREM', FEEDING, who) == 1 or changed
        end
    end
end

if leaving then put_back_all(LEASES) end

-- The size of the beginning of an order key that says its priority, after 8 bytes.
local function size_of_priority(member)
    -- It says how long it is: see encode_int in queue/order.py.
    local head, length = member:byte(9), member:sub(10, 17)
    if head > 0 and head < 255 then return 1 + (head >= 128 and head - 128 or 127 - head) end
    if head == 0 then length = length:gsub('.', function(c) return string.char(255 - c:byte()) end) end
    return 9 + struct.unpack('>I8', length)
end

-- Delayed requests that are due, some at a time, as if they were new.
local due = redis.call('ZRANGEBYSCORE', DELAYED, '-inf', digits(now), 'LIMIT', 0, DUE_AT_ONCE)
call_with('ZREM', DELAYED, due)
for _, member in ipairs(due) do
    local request = member:sub(10)
    local size = 8 + size_of_priority(request) + 1
    enqueue(request:sub(1, 8), request:sub(9, size), member:byte(9) == 1, request:sub(size + 1))
    changed = true
end
store_accepted()
renew_permits()
end_rests()

store_loads()

if leaving then
    redis.call('ZREM', DEADLINES, token)
else
    redis.call('ZADD', DEADLINES, digits(now + timeout), token)
end
if feeding and not leaving then
    changed = redis.call('ZADD', FEEDING, digits(now + timeout), token) == 1 or changed
else
    changed = redis.call('ZREM', FEEDING, token) == 1 or changed
end

-- Leases, in order: the slots that are next, of which one that still has requests is put in its new
-- place among them.
-- While there is little to do, a worker has no more than its share, and others have something, too;
-- as in guided self-scheduling (Polychronopoulos and Kuck 1987).
if paused > 0 then want = 0 end
if want > 0 then
    local workers = redis.call('ZCARD', DEADLINES)
    if workers > 1 then
        local share = math.ceil((redis.call('ZCARD', PENDING) + n.leased) / workers)
        want = math.min(want, math.max(1, share - redis.call('HLEN', LEASES)))
    end
end

local queue, load_at, taken, members_of = {}, {}, {}, {}
local removed, given = {}, {}
local slots = want > 0 and redis.call('ZRANGE', READY, 0, want - 1, 'WITHSCORES') or {}
for i = 1, #slots, 2 do
    local slot = slots[i]
    if is_quiet(slot) then
        rest_at_least(slot, quiet_until(slot))
    else
        queue[#queue + 1] = slot
        load_at[slot] = tonumber(slots[i + 1])
    end
end
local next_slot = 1
while #removed < want and queue[next_slot] do
    local slot = queue[next_slot]
    next_slot = next_slot + 1
    local offset = taken[slot] or 0
    local members = members_of[slot]
    if not members then
        -- Most often there is one slot, or a request or two of each.
        local ahead = #slots == 2 and not is_paced and want or 1
        members = redis.call('ZRANGEBYLEX', PENDING, '[' .. slot, '[' .. slot .. ('\255'):rep(12), 'LIMIT', offset, ahead + 1)
        members_of[slot] = members
        members.first = offset
    end
    local at = offset - members.first + 1
    local member, has_more = members[at], members[at + 1]
    if has_more and not members[at + 2] then members_of[slot] = nil end
    taken[slot] = offset + 1
    removed[#removed + 1] = member
    local size = 8 + size_of_priority(member) + 9
    local key, row = member:sub(1, size), member:sub(size + 1)
    keys[#keys + 1], rows[#rows + 1] = key, row
    given[#given + 1], given[#given + 2] = key, row
    n.tick = n.tick + 1
    local load = (math.floor(load_at[slot] / LEASED_ONCE) + 1) * LEASED_ONCE + n.tick
    load_at[slot], loads[slot], queued[slot] = load, load, has_more ~= nil
    ticks[#keys] = open_request(slot, n.tick)
    if has_more and not is_resting(slot) then
        local place = #queue
        while place >= next_slot and load_at[queue[place]] > load do
            queue[place + 1] = queue[place]
            place = place - 1
        end
        queue[place + 1] = slot
    end
end
if #removed > 0 then
    n.leased = n.leased + #removed
    changed = true
    call_with('ZREM', PENDING, removed)
    call_with('HSET', LEASES, given)
end
store_loads()
store_pace()

for _, row in ipairs(is_careful and rows or {}) do tell_of(fingerprint_of(row)) end
