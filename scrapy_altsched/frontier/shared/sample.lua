-- Notes how a crawl stands, if that was not done just now, and who works on it.  What the keys hold is
-- said in batch/entering.lua.  Returns the ms until the next sample is due; FULL: some have to go
-- first; GONE: the crawl was replaced.

local META, PENDING, DEADLINES, HEARD, DELAYED, FAILED, HISTORY, SAMPLES = unpack(KEYS)
local crawl, token, duplicates, most, grain = unpack(ARGV)
local FULL, GONE, WORKER = -1, -2, 'worker:'
-- ms for which a worker that has no leases any more is not taken to be dead: it may say that it has ended.
local LEAVES_WITHIN = 5000
local now = clock()

local function numbers_of(key, names)
    local found = redis.call('HMGET', key, unpack(names))
    for i, name in ipairs(names) do found[name] = tonumber(found[i] or 0) end
    return found
end

local counts = numbers_of(META, { 'crawl', 'accepted', 'leased', 'done', 'dead', 'sequence', 'seen' })
if counts[1] ~= crawl then return GONE end
if redis.call('HGET', HISTORY, 'crawl') ~= crawl then
    redis.call('UNLINK', HISTORY, SAMPLES)
elseif redis.call('LLEN', SAMPLES) >= tonumber(most) then
    return FULL
end
local NAMES = { 'grain', 'at', 'run', 'begun', 'ended', 'died', 'duplicates' }
local history = numbers_of(HISTORY, NAMES)
if history.grain == 0 then history.grain = tonumber(grain) end

-- The first write: it is refused by a server that is full, and nothing else is done then.
local is_new = redis.call('HSET', HISTORY, WORKER .. token, duplicates) == 1
local has_ended = not redis.call('ZSCORE', DEADLINES, token)
history.begun = history.begun + (is_new and 1 or 0)

-- Those that are gone, and what was refused in this run by those that are there.
local function look_for_workers()
    local fields, present, refused, died = redis.call('HGETALL', HISTORY), 0, 0, 0
    for i = 1, #fields, 2 do
        if fields[i]:sub(1, #WORKER) == WORKER then
            local who = fields[i]:sub(#WORKER + 1)
            local expires = tonumber(redis.call('ZSCORE', DEADLINES, who) or 0)
            local heard = tonumber(redis.call('ZSCORE', HEARD, who) or 0)
            local is_over = who == token and has_ended
            local is_dead = who ~= token and expires < now and heard + LEAVES_WITHIN < now
            if is_over or is_dead then
                redis.call('HDEL', HISTORY, fields[i])
                history.duplicates = history.duplicates + tonumber(fields[i + 1])
                if is_over then history.ended = history.ended + 1 else died = died + 1 end
            else
                present, refused = present + 1, refused + tonumber(fields[i + 1])
            end
        end
    end
    return present, refused, died
end

local left = history.at + history.grain - now
local is_due = left <= 0 or left > history.grain -- the clock may have been set back
if not (is_due or is_new or has_ended) then return left end
local present, refused, died = look_for_workers()
local begins = is_new and present == 1
if begins then
    history.run, history.duplicates = history.run + 1, 0
    local last = redis.call('LINDEX', SAMPLES, -1)
    if last and died > 0 then
        -- They died in the time that the last sample is of.
        last = cmsgpack.unpack(last)
        last[#last] = last[#last] + died
        redis.call('LSET', SAMPLES, -1, cmsgpack.pack(last))
    end
end
history.died = history.died + died

if is_due or begins or present == 0 then
    history.at, left = now, history.grain
    redis.call('RPUSH', SAMPLES, cmsgpack.pack({ now, history.run, counts.sequence, counts.accepted,
        redis.call('ZCARD', PENDING), counts.leased, counts.done, counts.dead, redis.call('ZCARD', DELAYED),
        redis.call('ZCARD', FAILED), counts[7] and counts.seen or -1, history.duplicates + refused,
        history.begun, history.ended, history.died }))
end
local stored = { 'crawl', crawl }
for _, name in ipairs(NAMES) do
    stored[#stored + 1], stored[#stored + 2] = name, string.format('%.0f', history[name])
end
redis.call('HSET', HISTORY, unpack(stored))
return left
