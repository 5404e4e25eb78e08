-- The frontier of many workers: one exchange with a crawl.
--
-- Every key carries the tag {crawl:partition}: all are in one slot of a cluster, and every key that a
-- call touches is declared in KEYS.  The names, after "altsched:{crawl:partition}:" :
--
--   meta       hash    what is known of the crawl, its counters, and the version of all of this;
--                      "held:" + token -> how many requests that worker has leased
--   pending    zset    score 0; member: slot (8 bytes) + order key + row, taken by ZRANGEBYLEX
--   ready      zset    slot -> load, of slots that have pending requests
--   busy       hash    slot -> load, of slots that have leased requests
--   workers    hash    token -> number of the last batch (8 bytes) + the reply to it
--   deadlines  zset    token -> when its leases expire, in ms of this server's clock
--   feeding    zset    token -> until when it counts as feeding, of workers with requests to come
--   dead       hash    key -> reason and row of a dead letter
--   suspects   hash    fingerprint -> what is held against a request (see Suspicion.encode in
--                      store/records.py); "was:" + token -> the same as it was before the leases
--                      of a worker expired
--   heard      zset    token -> when its last batch came, in ms; it is forgotten after a week
--   delayed    zset    score: when a request is due, in ms; member: sequence (8 bytes), whether of
--                      equals the last is the first (1 byte), slot, beginning of the order key, row
--   failed     zset    score: when a request has failed, in ms; member: length of its key (4 bytes),
--                      key, how it has failed (see encode_failure in store/states.py), row
--   leases:T   hash    key -> row, of what the worker with token T has leased
--   seen:C:XXXX  hash  the other 8 bytes of a seen key as an int64 -> its age in minutes; XXXX are
--                      its first bits and C those of the crawl's id, in hex.  Small ones are
--                      listpacks: 17 to 21 bytes a URL.
--
-- A request's key is slot + order key.  A load is leased requests * 2^40 + tick of the last lease:
-- the smallest is the slot that is next.
--
-- Numbers go through string.format: tostring and .. keep 14 digits.  What may be refused by a server
-- that is out of memory comes after a removal, which is never refused and after which nothing is; new
-- requests are refused explicitly.  This way a full server drains.
local META, PENDING, READY, BUSY, WORKERS, DEADLINES, FEEDING, DEAD, SUSPECTS, HEARD, DELAYED, FAILED, LEASES =
    unpack(KEYS, 1, 13)

local LEASED_ONCE = 1099511627776 -- 2^40
local LAST_SEQUENCE = 4503599627370496 -- 2^52
local SUPERSEDED = 9007199254740991 -- 2^53 - 1
local EXPIRE_AT_ONCE, FORGET_AT_ONCE, DUE_AT_ONCE = 100, 100, 200
local REMEMBERED = 604800000 -- ms: far longer than any lease lasts

local UNIQUE, ANY, FORGET, CHECK = 1, 2, 4, 5 -- 3: mark
local DONE, RELEASED, FAILS = 1, 3, 4 -- 2: died
local FREE, SUSPECT, BLAMED = 0, 1, 2
local A_DEATH, SUSPECT_AT = 4, 12
local WAITS, HELD = 'waits', 'held:'
-- The version before, which lacks nothing but delayed and failed requests.
local OLDER = '1'

local protocol, crawl, token, number, feeding, want, adds, endings, adopt, observed, overdue, timeout,
    create, leaving, watched, judged, keep_failed = unpack(cmsgpack.unpack(ARGV[1]), 1, 17)
local now = clock()

-- One call with many arguments costs a fifth of many calls; a call takes no more than some thousand.
local function call_with(command, key, arguments)
    for i = 1, #arguments, 1000 do
        redis.call(command, key, unpack(arguments, i, math.min(i + 999, #arguments)))
    end
end

local function digits(n) return string.format('%.0f', n) end

-- Which worker is asking: nothing is written until it is known that all of the batch applies.
local NUMBERS = { 'accepted', 'done', 'dead', 'leased', 'version', 'sequence', 'tick', 'epoch', 'dropped' }
local meta = redis.call('HMGET', META, 'crawl', 'state', 'about', 'previous', 'protocol', 'created', unpack(NUMBERS))
local is_new, previous = not meta[1], meta[4] or ''
if not is_new and meta[5] ~= protocol and meta[5] ~= OLDER then return cmsgpack.pack({ 'PROTOCOL' }) end
if is_new and (crawl ~= '' or number ~= 1) then return cmsgpack.pack({ 'LOST' }) end
if not is_new and crawl ~= '' and meta[1] ~= crawl then
    return cmsgpack.pack({ crawl == previous and 'FINISHED' or 'LOST' })
end
local restarts = not is_new and create and create[3] and meta[2] == 'finished'
if restarts then previous, is_new, meta = meta[1], true, {} end
local state, created = meta[2] or 'open', tonumber(meta[6] or now)
local about
if is_new then
    crawl, about = create[1], create[2]
else
    crawl, about = meta[1], meta[3]
end
local n = {}
for i, name in ipairs(NUMBERS) do n[name] = tonumber(meta[6 + i] or 0) end

local record = not is_new and redis.call('HGET', WORKERS, token)
local last = record and struct.unpack('>I8', record) or 0
if number == last and last > 0 then
    -- The reply was lost.  What was leased is still there, unless it has expired since.
    local reply = cmsgpack.unpack(record:sub(9))
    local keys, rows = reply[8], {}
    for i = 1, #keys do rows[i] = redis.call('HGET', LEASES, keys[i]) or '' end
    reply[9] = rows
    return cmsgpack.pack(reply)
elseif number < last then
    return cmsgpack.pack({ 'STALE' })
elseif number > last + 1 then
    return cmsgpack.pack({ 'GAP' })
end
local reopened = 0
if state == 'finished' then
    if not record and not adopt and feeding ~= WAITS then
        return cmsgpack.pack({ 'FINISHED', crawl, { n.accepted, 0, 0, n.done, n.dead, 0, n.version, n.epoch, 0, 0, -1,
            redis.call('ZCARD', FAILED), n.dropped } })
    end
    -- A worker that waits brings something later.
    if #adds > 0 or feeding == WAITS then state, reopened = 'open', 1 end
end

-- The first write tells whether there is memory for more.
local is_full = false
local probe = redis.pcall('HSET', META, 'crawl', crawl)
if type(probe) == 'table' and probe.err then
    if not probe.err:find('OOM', 1, true) then
        return redis.error_reply(probe.err)
    elseif is_new and not restarts then
        return cmsgpack.pack({ 'FULL' })
    end
    is_full = true
    redis.call('HDEL', META, '')
end
if restarts then
    redis.call('UNLINK', META, PENDING, READY, BUSY, WORKERS, DEADLINES, FEEDING, DEAD, SUSPECTS, HEARD, DELAYED, FAILED)
end

local changed = is_new or reopened == 1
local seen, full, void, skipped = {}, {}, {}, {}

-- Loads of slots that this call has touched, and whether they have pending requests; nil: as before.
local loads, queued = {}, {}

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
        if queued[slot] == false then
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

-- Suspects.  A worker judges from its log of leases, if it has one.  Otherwise it is known of a dead
-- worker only what it had leased, and what it had said it would be careful with: see judge in
-- suspects.py.
local is_careful = redis.call('HLEN', SUSPECTS) > 0
local suspicions = {}

local function tell_of(fingerprint)
    local held = redis.call('HGET', SUSPECTS, fingerprint)
    if held then suspicions[#suspicions + 1], suspicions[#suspicions + 2] = fingerprint, held end
end

local function hold_against(fingerprint, held)
    if held == '' then
        redis.call('HDEL', SUSPECTS, fingerprint)
    else
        redis.call('HSET', SUSPECTS, fingerprint, held)
        is_careful = true
    end
end

local function is_in(fingerprint, joined)
    for at = 1, #joined, #fingerprint do
        if joined:sub(at, at + #fingerprint - 1) == fingerprint then return true end
    end
    return false
end

local function judge(fingerprints, alone, others, before)
    for _, fingerprint in ipairs(fingerprints) do
        local was = redis.call('HGET', SUSPECTS, fingerprint)
        local level, in_hand, downloading, age, narrowed = (was or '\0\0\0\0\0'):byte(1, 5)
        local is_changed = true
        if alone ~= '' then
            is_changed = fingerprint == alone
            level, downloading = BLAMED, math.min(downloading + 1, 255)
        elseif is_in(fingerprint, others) then
            if narrowed == 1 or #others == #fingerprint then
                level = BLAMED
            else
                narrowed = 1
            end
        elseif level == FREE then
            age = math.min(age + A_DEATH, SUSPECT_AT)
            level = age == SUSPECT_AT and SUSPECT or FREE
        else
            -- It was withheld, or is watched no longer.
            is_changed = false
        end
        if is_changed then
            before[#before + 1], before[#before + 2] = fingerprint, was or ''
            hold_against(fingerprint, string.char(level, in_hand, downloading, age, narrowed))
        end
    end
end

-- A worker whose leases had expired was not dead, or tells more itself.
local function take_back_judgement(whose)
    local before = is_careful and redis.call('HGET', SUSPECTS, 'was:' .. whose)
    if before then
        redis.call('HDEL', SUSPECTS, 'was:' .. whose)
        before = cmsgpack.unpack(before)
        for i = 1, #before, 2 do hold_against(before[i], before[i + 1]) end
    end
end

take_back_judgement(token)

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
        if wanted then
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

-- New requests.
local age = string.format('%d', math.floor((now - created) / 60000))
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

for i = 1, #adds, 10 do
    local kind, bucket, field = adds[i + 1], KEYS[adds[i + 2]], adds[i + 3]
    local is_seen = false
    if kind == FORGET then
        is_seen = redis.call('HDEL', bucket, field) == 0
        n.epoch = n.epoch + (is_seen and 0 or 1)
    elseif kind == CHECK or is_full and kind ~= ANY then
        is_seen = redis.call('HEXISTS', bucket, field) == 1
    elseif kind ~= ANY then
        is_seen = redis.call('HSETNX', bucket, field, age) == 0
    end
    if is_seen then
        seen[#seen + 1] = adds[i]
    elseif is_full and kind ~= CHECK and kind ~= FORGET then
        full[#full + 1] = adds[i]
    elseif kind == UNIQUE or kind == ANY then
        accept(unpack(adds, i + 4, i + 9))
    end
end

store_accepted()

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
    queue[#queue + 1] = slots[i]
    load_at[slots[i]] = tonumber(slots[i + 1])
end
local next_slot = 1
while #removed < want and queue[next_slot] do
    local slot = queue[next_slot]
    next_slot = next_slot + 1
    local offset = taken[slot] or 0
    local members = members_of[slot]
    if not members then
        -- Most often there is one slot, or a request or two of each.
        local ahead = #slots == 2 and want or 1
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
    if has_more then
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
    store_loads()
end

for _, row in ipairs(is_careful and rows or {}) do tell_of(fingerprint_of(row)) end

-- The end: twice in a row nothing is left to do, no worker brings more, and nothing has happened.
local pending, waiting = redis.call('ZCARD', PENDING), redis.call('ZCARD', DELAYED)
local feeders = redis.call('ZCOUNT', FEEDING, digits(now), '+inf')
if changed then n.version = n.version + 1 end
if observed == n.version and pending == 0 and waiting == 0 and n.leased == 0 and feeders == 0 and state == 'open' then
    state = 'finished'
end
local late = redis.call('ZRANGEBYSCORE', DEADLINES, '-inf', '(' .. digits(now), 'LIMIT', 0, 1)[1]

local first = waiting > 0 and redis.call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2]

local stored = { 'crawl', crawl, 'state', state, 'about', about, 'previous', previous, 'protocol', protocol,
    'created', digits(created), HELD .. token, digits(redis.call('HLEN', LEASES)) }
for name, value in pairs(n) do stored[#stored + 1], stored[#stored + 2] = name, digits(value) end
redis.call('HSET', META, unpack(stored))
if leaving then redis.call('HDEL', META, HELD .. token) end

local reply = { 'OK', crawl, { n.accepted, pending, n.leased, n.done, n.dead, feeders, n.version, n.epoch, reopened,
        waiting, first and math.max(0, tonumber(first) - now) or -1, redis.call('ZCARD', FAILED), n.dropped },
    seen, full, void, skipped, keys, {}, state, late or '', number == 1 and about or '', suspicions, watched }
redis.call('HSET', WORKERS, token, struct.pack('>I8', number) .. cmsgpack.pack(reply))
redis.call('ZADD', HEARD, digits(now), token)
reply[9] = rows
return cmsgpack.pack(reply)
