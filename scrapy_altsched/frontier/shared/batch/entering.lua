-- The frontier of many workers: one exchange with a crawl.
--
-- Every key carries the tag {crawl:partition}: all are in one slot of a cluster, and every key that a
-- call touches is declared in KEYS.  The names, after "altsched:{crawl:partition}:" :
--
--   meta       hash    what is known of the crawl, its counters, and the version of all of this;
--                      "held:" + token -> how many requests that worker has leased; "paused", if
--                      it is: since when, in ms; "stops": how often its workers were stopped;
--                      "brought": the limits that its last worker has brought; "seen": how many
--                      pages are, without the claims to start requests that are among seen keys;
--                      "ages": since when it is recorded when pages are finished, in ms, if it is, and
--                      when this pass began, and what time it is: in seconds from then on
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
--   resting    zset    slot -> until when it may not be asked, in ms; infinity: until one of its open
--                      requests is downloaded.  Such a slot is in no other place of the queue
--   slots      hash    slot -> its own delay, jitter and cap, and until when it is deferred: see pace.lua
--   open       hash    slot -> how many requests are open: leased, and not downloaded
--   downloaded set     keys of leased requests that are not open any more
--   budgets    hash    slot -> how many unique requests of it were accepted, where only so many are
--   history    hash    for sample.lua: the crawl's id, the ms between two samples ("grain"), when the last one was
--                      taken, and counters; "worker:" + token -> how many requests that worker has refused
--   samples    list    how the crawl stood: see sample.lua.  No batch touches these two
--   leases:T   hash    key -> row, of what the worker with token T has leased
--   seen:C:XXXX  hash  the other 8 bytes of a seen key as an int64 -> when it was found, in minutes
--                      since the crawl began, or see ages.lua; XXXX are its first bits and C those
--                      of the crawl's id, in hex.  Small ones are listpacks: 17 to 21 bytes a URL,
--                      and 2 more with ages.
--
-- A request's key is slot + order key.  A load is leased requests * 2^40 + tick of the last lease:
-- the smallest is the slot that is next.
--
-- Numbers go through string.format: tostring and .. keep 14 digits.  What may be refused by a server
-- that is out of memory comes after a removal, which is never refused and after which nothing is; new
-- requests are refused explicitly.  This way a full server drains.
local META, PENDING, READY, BUSY, WORKERS, DEADLINES, FEEDING, DEAD, SUSPECTS, HEARD, DELAYED, FAILED, RESTING,
    SLOTS, OPEN, DOWNLOADED, BUDGETS, LEASES = unpack(KEYS, 1, 18)

local LEASED_ONCE = 1099511627776 -- 2^40
local LAST_SEQUENCE = 4503599627370496 -- 2^52
local SUPERSEDED = 9007199254740991 -- 2^53 - 1
local EXPIRE_AT_ONCE, FORGET_AT_ONCE, DUE_AT_ONCE = 100, 100, 200
local REMEMBERED = 604800000 -- ms: far longer than any lease lasts

local UNIQUE, ANY, FORGET, CHECK = 1, 2, 4, 5 -- 3: mark
local DONE, RELEASED, FAILS = 1, 3, 4 -- 2: died
local FREE, SUSPECT, BLAMED = 0, 1, 2
local A_DEATH, SUSPECT_AT = 4, 12
local WAITS, STOPPED, HELD = 'waits', 'stopped', 'held:'
-- Versions of what the keys hold: with delayed and failed requests, which version 1 had not; with a pace; paused;
-- and with ages of pages.  Workers of an older version would not keep the last three.
local UNPACED, PACED, PAUSED, AGED = '2', '3', '4', '5'

local protocol, crawl, token, number, feeding, want, adds, endings, adopt, observed, overdue, timeout,
    create, leaving, watched, judged, keep_failed, pace, budget, aging = unpack(cmsgpack.unpack(ARGV[1]), 1, 20)
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
local meta = redis.call('HMGET', META, 'crawl', 'state', 'about', 'previous', 'protocol', 'created', 'limits', 'run',
    'restarted', 'paused', 'stops', 'seen', 'ages', unpack(NUMBERS))
local is_new, previous = not meta[1], meta[4] or ''
if not is_new and tonumber(meta[5]) > tonumber(protocol) then return cmsgpack.pack({ 'PROTOCOL' }) end
if is_new and (crawl ~= '' or number ~= 1) then return cmsgpack.pack({ 'LOST' }) end
if not is_new and crawl ~= '' and meta[1] ~= crawl then
    return cmsgpack.pack({ crawl == previous and 'FINISHED' or 'LOST' })
end
local restarts = not is_new and create and create[3]
    and (meta[2] == 'finished' or create[3] == STOPPED and redis.call('ZCOUNT', DEADLINES, digits(now), '+inf') == 0)
-- Not known of a crawl that an older version began.  One that is restarted under the same mark keeps what was seen.
local number_seen, ages = tonumber(meta[12]), meta[13] and cmsgpack.unpack(meta[13])
if is_new or restarts and create[1]:sub(1, 3) ~= meta[1]:sub(1, 3) then number_seen, ages = 0, nil end
if restarts then previous, is_new, meta = meta[1], true, {} end
if create and create[3] == STOPPED and not (is_new or restarts) then return cmsgpack.pack({ 'RUNNING' }) end
local state, created = meta[2] or 'open', tonumber(meta[6] or now)
local paused, stops = tonumber(meta[10] or 0), tonumber(meta[11] or 0)
local about
if is_new then
    crawl, about = create[1], create[2]
else
    crawl, about = meta[1], meta[3]
end
local n = { seen = number_seen }
for i, name in ipairs(NUMBERS) do n[name] = tonumber(meta[13 + i] or 0) end

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
    redis.call('UNLINK', META, PENDING, READY, BUSY, WORKERS, DEADLINES, FEEDING, DEAD, SUSPECTS, HEARD, DELAYED, FAILED,
        RESTING, SLOTS, OPEN, DOWNLOADED, BUDGETS)
end

local changed = is_new or reopened == 1
local seen, full, void, skipped, over = {}, {}, {}, {}, {}
