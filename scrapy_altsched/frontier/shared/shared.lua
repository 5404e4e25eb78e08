-- The frontier of many workers: one partition of a crawl, and one exchange with it.
--
-- Every key carries the tag {crawl:partition}, so that all are in one slot of a cluster, and every
-- key that a call touches is declared in KEYS.  The names, after "altsched:{crawl:partition}:" :
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
--   suspects   hash    fingerprint -> what is held against a request (see encode_suspicion in
--                      store/records.py); "was:" + token -> the same as it was before the leases
--                      of a worker expired
--   heard      zset    token -> when its last batch came, in ms; it is forgotten after a week
--   leases:T   hash    key -> row, of what the worker with token T has leased
--   seen:C:XXXX  hash  the other 8 bytes of a seen key as an int64 -> its age in minutes; XXXX are
--                      its first bits and C those of the crawl's id, in hex.  Small ones are
--                      listpacks: 17 to 21 bytes a URL.
--
-- A request's key is slot + order key.  A load is leased requests * 2^40 + tick of the last lease:
-- the smallest is the slot that is next.
--
-- Numbers go through string.format: tostring and .. keep 14 digits.  Whatever may be refused by a
-- server that is out of memory comes after a removal, which is never refused and after which
-- nothing is; new requests are refused explicitly.  This way a full server drains.

local META, PENDING, READY, BUSY, WORKERS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local DEADLINES, FEEDING, DEAD, SUSPECTS = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local HEARD, LEASES = KEYS[10], KEYS[11]

local LEASED_ONCE = 1099511627776 -- 2^40
local LAST_SEQUENCE = 4503599627370496 -- 2^52
local SUPERSEDED = 9007199254740991 -- 2^53 - 1
local EXPIRE_AT_ONCE, FORGET_AT_ONCE = 100, 100
local REMEMBERED = 604800000 -- ms: far longer than any lease lasts

local UNIQUE, ANY, MARK, FORGET, CHECK = 1, 2, 3, 4, 5
local DONE, DIED, RELEASED = 1, 2, 3
local FREE, SUSPECT, BLAMED = 0, 1, 2
local A_DEATH, SUSPECT_AT = 4, 12
local WAITS, HELD = 'waits', 'held:'

local batch = cmsgpack.unpack(ARGV[1])
local protocol, crawl, token, number = batch[1], batch[2], batch[3], batch[4]
local feeding, want, adds, endings = batch[5], batch[6], batch[7], batch[8]
local adopt, observed, overdue, timeout, create = batch[9], batch[10], batch[11], batch[12], batch[13]
local leaving, watched, judged = batch[14], batch[15], batch[16]

local now = clock()

-- One call with many arguments costs a fifth of many calls; a call takes no more than some thousand.
local function call_with(command, key, arguments)
    for i = 1, #arguments, 1000 do
        redis.call(command, key, unpack(arguments, i, math.min(i + 999, #arguments)))
    end
end

local function digits(n)
    return string.format('%.0f', n)
end

-- Who is asking: nothing is written until it is known that all of the batch applies.

local meta = redis.call('HMGET', META, 'crawl', 'state', 'accepted', 'done', 'dead', 'leased',
    'version', 'sequence', 'tick', 'epoch', 'created', 'about', 'previous', 'protocol', HELD .. token)
local is_new, previous = not meta[1], meta[13] or ''
if not is_new and meta[14] ~= protocol then
    return cmsgpack.pack({ 'PROTOCOL' })
end
if is_new and (crawl ~= '' or number ~= 1) then
    return cmsgpack.pack({ 'LOST' })
end
if not is_new and crawl ~= '' and meta[1] ~= crawl then
    return cmsgpack.pack({ crawl == previous and 'FINISHED' or 'LOST' })
end
local state = is_new and 'open' or meta[2]
local accepted, done, dead, leased = tonumber(meta[3] or 0), tonumber(meta[4] or 0), tonumber(meta[5] or 0), tonumber(meta[6] or 0)
local version, sequence, tick = tonumber(meta[7] or 0), tonumber(meta[8] or 0), tonumber(meta[9] or 0)
local epoch, created, about = tonumber(meta[10] or 0), tonumber(meta[11] or now), meta[12]
local restarts = not is_new and create and create[3] and state == 'finished'
if restarts then
    previous, state, is_new, created = meta[1], 'open', true, now
    accepted, done, dead, leased, version, sequence, tick, epoch = 0, 0, 0, 0, 0, 0, 0, 0
end
if is_new then
    crawl, about = create[1], create[2]
else
    crawl = meta[1]
end

local record = not is_new and redis.call('HGET', WORKERS, token)
local last = record and struct.unpack('>I8', record) or 0
if number == last and last > 0 then
    -- The reply was lost.  What was leased is still there, unless it has expired since.
    local reply = cmsgpack.unpack(record:sub(9))
    local keys, rows = reply[8], {}
    for i = 1, #keys do
        rows[i] = redis.call('HGET', LEASES, keys[i]) or ''
    end
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
        return cmsgpack.pack({ 'FINISHED', crawl, { accepted, 0, 0, done, dead, 0, version, epoch, 0 } })
    end
    -- A worker that waits brings something later.
    if #adds > 0 or feeding == WAITS then
        state, reopened = 'open', 1
    end
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
    redis.call('UNLINK', META, PENDING, READY, BUSY, WORKERS, DEADLINES, FEEDING, DEAD, SUSPECTS, HEARD)
end

local changed = is_new or reopened == 1
local seen, full, void, skipped = {}, {}, {}, {}

-- Loads of slots that this call has touched, and whether they have pending requests; written back
-- before the first lease.

local loads, queued, touched = {}, {}, {}

local function load_of(slot)
    local load = loads[slot]
    if not load then
        load = tonumber(redis.call('HGET', BUSY, slot) or 0)
        if load == 0 then
            load = tonumber(redis.call('ZSCORE', READY, slot) or 0)
        end
        loads[slot] = load
        touched[#touched + 1] = slot
    end
    return load
end

local function put_back(key, row)
    local slot = key:sub(1, 8)
    redis.call('ZADD', PENDING, 0, key .. row)
    loads[slot] = load_of(slot) - LEASED_ONCE
    queued[slot] = true
    leased = leased - 1
end

local function fingerprint_of(row)
    return row:sub(3, 2 + row:byte(2))
end

local function put_back_all(from, limit, is_held, told)
    local rows = limit and redis.call('HSCAN', from, 0, 'COUNT', limit)[2] or redis.call('HGETALL', from)
    local put = 0
    for i = 1, #rows, 2 do
        if put == limit then
            break
        end
        if is_held and is_held[rows[i]] then
            if from ~= LEASES then
                redis.call('HDEL', from, rows[i])
                redis.call('HSET', LEASES, rows[i], rows[i + 1])
            end
            is_held[rows[i]] = 'found'
        else
            redis.call('HDEL', from, rows[i])
            put_back(rows[i], rows[i + 1])
            put = put + 1
            changed = true
            if told then
                told[#told + 1] = fingerprint_of(rows[i + 1])
            end
        end
    end
end

-- Suspects.  A worker judges from its log of leases, if it has one.  Otherwise it is known of a dead
-- worker only what it had leased, and what it had said it would be careful with: see judge in
-- suspects.py.

local is_careful = redis.call('HLEN', SUSPECTS) > 0

local function is_beside(fingerprint, beside)
    for at = 1, #beside, #fingerprint do
        if beside:sub(at, at + #fingerprint - 1) == fingerprint then
            return true
        end
    end
    return false
end

local function judge(fingerprints, alone, beside, before)
    for _, fingerprint in ipairs(fingerprints) do
        local was = redis.call('HGET', SUSPECTS, fingerprint)
        local level, in_hand, downloading, age, narrowed = FREE, 0, 0, 0, 0
        if was then
            level, in_hand, downloading, age, narrowed = was:byte(1, 5)
        end
        local is_changed = true
        if alone ~= '' then
            is_changed = fingerprint == alone
            level, downloading = BLAMED, math.min(downloading + 1, 255)
        elseif is_beside(fingerprint, beside) then
            if narrowed == 1 or #beside == #fingerprint then
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
            before[#before + 1] = fingerprint
            before[#before + 1] = was or ''
            redis.call('HSET', SUSPECTS, fingerprint, string.char(level, in_hand, downloading, age, narrowed))
            is_careful = true
        end
    end
end

-- A worker whose leases had expired was not dead, or tells more itself.
local function take_back_judgement(whose)
    local before = is_careful and redis.call('HGET', SUSPECTS, 'was:' .. whose)
    if not before then
        return
    end
    redis.call('HDEL', SUSPECTS, 'was:' .. whose)
    before = cmsgpack.unpack(before)
    for i = 1, #before, 2 do
        if before[i + 1] == '' then
            redis.call('HDEL', SUSPECTS, before[i])
        else
            redis.call('HSET', SUSPECTS, before[i], before[i + 1])
        end
    end
end

take_back_judgement(token)

-- Leases whose key went missing are no longer leased, and are in no state then.
local function drop_missing(whose, held, from)
    held = tonumber(held or 0)
    if held > 0 and redis.call('HLEN', from) == 0 and redis.call('ZSCORE', DEADLINES, whose) then
        leased = leased - held
        changed = true
    end
end

-- How many another worker holds is not known any more once some of its leases have gone elsewhere.
local function drop_missing_of(whose, from)
    drop_missing(whose, redis.call('HGET', META, HELD .. whose), from)
    redis.call('HDEL', META, HELD .. whose)
end

drop_missing(token, not is_new and meta[15], LEASES)

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

local keys, rows, suspicions = {}, {}, {}

if adopt then
    local old, kept, asked = adopt[1], adopt[2], adopt[3]
    local is_held = {}
    for _, key in ipairs(kept or {}) do
        is_held[key] = 'wanted'
    end
    if kept then
        put_back_all(LEASES, nil, is_held)
    end
    for i = 1, #old, 2 do
        local from = KEYS[old[i + 1]]
        take_back_judgement(old[i])
        drop_missing_of(old[i], from)
        if kept then
            put_back_all(from, nil, is_held)
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
    for key, found in pairs(is_held) do
        if found ~= 'found' then
            void[#void + 1] = key
        end
    end
    for _, fingerprint in ipairs(is_careful and asked or {}) do
        local held = redis.call('HGET', SUSPECTS, fingerprint)
        if held then
            suspicions[#suspicions + 1] = fingerprint
            suspicions[#suspicions + 1] = held
        end
    end
end

-- New requests.

local age = string.format('%d', math.floor((now - created) / 60000))
local added = {}
for i = 1, #adds, 8 do
    local n, kind, bucket, field = adds[i], adds[i + 1], KEYS[adds[i + 2]], adds[i + 3]
    if kind == FORGET then
        if redis.call('HDEL', bucket, field) == 0 then
            seen[#seen + 1] = n
        else
            epoch = epoch + 1
        end
    elseif kind == CHECK then
        if redis.call('HEXISTS', bucket, field) == 1 then
            seen[#seen + 1] = n
        end
    else
        local is_accepted = true
        if is_full then
            is_accepted = false
            if kind ~= ANY and redis.call('HEXISTS', bucket, field) == 1 then
                seen[#seen + 1] = n
            else
                full[#full + 1] = n
            end
        elseif kind ~= ANY and redis.call('HSETNX', bucket, field, age) == 0 then
            is_accepted = false
            seen[#seen + 1] = n
        end
        if is_accepted and kind ~= MARK then
            local slot, order = adds[i + 4], sequence
            sequence = sequence + 1
            if adds[i + 6] then
                order = LAST_SEQUENCE - order
            end
            added[#added + 1] = 0
            added[#added + 1] = slot .. adds[i + 5] .. struct.pack('>I8', order) .. adds[i + 7]
            load_of(slot)
            queued[slot] = true
            accepted = accepted + 1
            changed = true
        end
    end
end

call_with('ZADD', PENDING, added)

-- Endings.  One that rests on a request that was refused for want of memory waits for it.

local function rests_on_refused(after, upto)
    for i = #full, 1, -1 do
        if full[i] > after and full[i] <= upto then
            return true
        end
    end
    return false
end

for i = 1, #endings, 5 do
    local key, kind = endings[i], endings[i + 1]
    if rests_on_refused(endings[i + 2], endings[i + 3]) then
        skipped[#skipped + 1] = key
    else
        local row = (kind ~= DONE or is_careful) and redis.call('HGET', LEASES, key)
        if redis.call('HDEL', LEASES, key) == 0 then
            void[#void + 1] = key
        else
            changed = true
            if kind == RELEASED then
                put_back(key, row)
            else
                local slot = key:sub(1, 8)
                loads[slot] = load_of(slot) - LEASED_ONCE
                leased = leased - 1
                if is_careful then
                    redis.call('HDEL', SUSPECTS, fingerprint_of(row))
                end
                if kind == DONE then
                    done = done + 1
                else
                    redis.call('HSET', DEAD, key, cmsgpack.pack({ endings[i + 4], row }))
                    dead = dead + 1
                end
            end
        end
    end
end

for i = 1, #judged, 2 do
    if judged[i + 1] == '' then
        redis.call('HDEL', SUSPECTS, judged[i])
    else
        redis.call('HSET', SUSPECTS, judged[i], judged[i + 1])
        is_careful = true
    end
end

-- Leases of a worker that was not heard of go back, some at a time.

if overdue then
    local from, deadline = KEYS[overdue[2]], redis.call('ZSCORE', DEADLINES, overdue[1])
    if deadline and tonumber(deadline) < now then
        local put = {}
        drop_missing_of(overdue[1], from)
        put_back_all(from, EXPIRE_AT_ONCE, nil, put)
        local its_record = redis.call('HGET', WORKERS, overdue[1])
        if its_record and #its_record > 8 then
            local its_watched = cmsgpack.unpack(its_record:sub(9))[14]
            local before = redis.call('HGET', SUSPECTS, 'was:' .. overdue[1])
            before = before and cmsgpack.unpack(before) or {}
            judge(put, its_watched[1], its_watched[2], before)
            if #before > 0 then
                redis.call('HSET', SUSPECTS, 'was:' .. overdue[1], cmsgpack.pack(before))
            end
        end
        if redis.call('HLEN', from) == 0 then
            redis.call('ZREM', DEADLINES, overdue[1])
            if redis.call('ZREM', FEEDING, overdue[1]) == 1 then
                changed = true
            end
        end
    end
end

if leaving then
    put_back_all(LEASES)
end

-- A slot that is in neither has load 0.
local idle, busy, ready, waiting = {}, {}, {}, {}
for _, slot in ipairs(touched) do
    local load = loads[slot]
    if load < LEASED_ONCE then
        idle[#idle + 1] = slot
    else
        busy[#busy + 1], busy[#busy + 2] = slot, digits(load)
    end
    local of = queued[slot] and ready or waiting
    of[#of + 1], of[#of + 2] = digits(load), slot
end
call_with('HDEL', BUSY, idle)
call_with('HSET', BUSY, busy)
call_with('ZADD', READY, ready)
for i = 1, #waiting, 1000 do
    redis.call('ZADD', READY, 'XX', unpack(waiting, i, math.min(i + 999, #waiting)))
end

if leaving then
    redis.call('ZREM', DEADLINES, token)
else
    redis.call('ZADD', DEADLINES, digits(now + timeout), token)
end
if feeding and not leaving then
    if redis.call('ZADD', FEEDING, digits(now + timeout), token) == 1 then
        changed = true
    end
elseif redis.call('ZREM', FEEDING, token) == 1 then
    changed = true
end

-- Leases, in order: the slots that are next, of which one that still has requests is put in its new
-- place among them.

local function size_of_order_key(member)
    -- It says how long it is: see encode_int in queue/order.py.
    local head = member:byte(9)
    if head == 255 then
        return 9 + struct.unpack('>I8', member:sub(10, 17))
    elseif head == 0 then
        local inverted = member:sub(10, 17):gsub('.', function(c) return string.char(255 - c:byte()) end)
        return 9 + struct.unpack('>I8', inverted)
    elseif head >= 128 then
        return 1 + head - 128
    end
    return 1 + 127 - head
end

-- While there is little to do, a worker has no more than its share, so that others have something, too;
-- as in guided self-scheduling (Polychronopoulos and Kuck 1987).
if want > 0 then
    local workers = redis.call('ZCARD', DEADLINES)
    if workers > 1 then
        local share = math.ceil((redis.call('ZCARD', PENDING) + leased) / workers)
        want = math.min(want, math.max(1, share - redis.call('HLEN', LEASES)))
    end
end

local slots, again, taken, members_of = {}, {}, {}, {}
local removed, given, emptied, now_busy, now_ready = {}, {}, {}, {}, {}
if want > 0 then
    slots = redis.call('ZRANGE', READY, 0, want - 1, 'WITHSCORES')
end
local next_slot, next_again, leased_now = 1, 1, 0
while leased_now < want do
    local slot, load
    local waiting_again = again[next_again]
    if slots[next_slot] and not (waiting_again and waiting_again[2] < tonumber(slots[next_slot + 1])) then
        slot, load = slots[next_slot], tonumber(slots[next_slot + 1])
        next_slot = next_slot + 2
    elseif waiting_again then
        slot, load = waiting_again[1], waiting_again[2]
        next_again = next_again + 1
    else
        break
    end
    local offset = taken[slot] or 0
    local members = members_of[slot]
    if not members then
        -- Most often there is one slot, or a request or two of each.
        local ahead = #slots == 2 and want or 1
        members = redis.call('ZRANGEBYLEX', PENDING, '[' .. slot, '[' .. slot .. '\255\255\255\255\255\255\255\255\255\255\255\255', 'LIMIT', offset, ahead + 1)
        members_of[slot] = members
        members.first = offset
    end
    local member = members[offset - members.first + 1]
    local has_more = members[offset - members.first + 2]
    if has_more and not members[offset - members.first + 3] then
        members_of[slot] = nil
    end
    taken[slot] = offset + 1
    removed[#removed + 1] = member
    local size = size_of_order_key(member)
    local key, row = member:sub(1, 8 + size + 9), member:sub(8 + size + 10)
    keys[#keys + 1], rows[#rows + 1] = key, row
    given[#given + 1], given[#given + 2] = key, row
    tick = tick + 1
    load = (math.floor(load / LEASED_ONCE) + 1) * LEASED_ONCE + tick
    if has_more then
        local at = #again
        while at >= next_again and again[at][2] > load do
            again[at + 1] = again[at]
            at = at - 1
        end
        again[at + 1] = { slot, load }
        now_ready[slot] = load
    else
        now_ready[slot] = nil
        emptied[#emptied + 1] = slot
    end
    now_busy[slot] = load
    leased_now = leased_now + 1
end
if leased_now > 0 then
    leased = leased + leased_now
    changed = true
    call_with('ZREM', PENDING, removed)
    call_with('HSET', LEASES, given)
    local flat = {}
    for slot, load in pairs(now_busy) do
        flat[#flat + 1], flat[#flat + 2] = slot, digits(load)
    end
    call_with('HSET', BUSY, flat)
    call_with('ZREM', READY, emptied)
    flat = {}
    for slot, load in pairs(now_ready) do
        flat[#flat + 1], flat[#flat + 2] = digits(load), slot
    end
    call_with('ZADD', READY, flat)
end

for _, row in ipairs(is_careful and rows or {}) do
    local held = redis.call('HGET', SUSPECTS, fingerprint_of(row))
    if held then
        suspicions[#suspicions + 1] = fingerprint_of(row)
        suspicions[#suspicions + 1] = held
    end
end

-- The end: twice in a row nothing is left to do, nobody brings more, and nothing has happened.

local pending = redis.call('ZCARD', PENDING)
local feeders = redis.call('ZCOUNT', FEEDING, digits(now), '+inf')
if changed then
    version = version + 1
end
if observed == version and pending == 0 and leased == 0 and feeders == 0 and state == 'open' then
    state = 'finished'
end
local late = redis.call('ZRANGEBYSCORE', DEADLINES, '-inf', '(' .. digits(now), 'LIMIT', 0, 1)[1]

redis.call('HSET', META, 'crawl', crawl, 'state', state, 'accepted', digits(accepted),
    'done', digits(done), 'dead', digits(dead), 'leased', digits(leased),
    'version', digits(version), 'sequence', digits(sequence), 'tick', digits(tick),
    'epoch', digits(epoch), 'created', digits(created), 'about', about,
    'previous', previous, 'protocol', protocol, HELD .. token, digits(redis.call('HLEN', LEASES)))
if leaving then
    redis.call('HDEL', META, HELD .. token)
end

local reply = { 'OK', crawl, { accepted, pending, leased, done, dead, feeders, version, epoch, reopened },
    seen, full, void, skipped, keys, {}, state, late or '', number == 1 and about or '', suspicions, watched }
redis.call('HSET', WORKERS, token, struct.pack('>I8', number) .. cmsgpack.pack(reply))
redis.call('ZADD', HEARD, digits(now), token)
reply[9] = rows
return cmsgpack.pack(reply)
