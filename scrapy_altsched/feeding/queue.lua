-- A queue that others fill, of which entries are taken, and removed when they are acknowledged.
--
--   KEYS[1]  list, set or zset   the queue: a list is taken from its head, a zset from its highest
--                                score
--   KEYS[2]  zset                taker -> when its entries go back, in ms of this server's clock
--   KEYS[3]  list                entries that no request could be made of
--   KEYS[4]  hash                id -> entry, of what this taker has taken
--   KEYS[5]  hash                the same of a taker whose time is over
--
-- An entry that is taken has the queue's type before it ("l", "s", or "z" and its score), so that
-- it can go back.  What a full server may refuse comes after a removal, and is not refused then.

local QUEUE, TAKERS, DEAD, TAKEN, OVERDUE = unpack(KEYS)
local AT_ONCE = 100

local taker, timeout, want, held, first, stored, dead, overdue, leaving = unpack(cmsgpack.unpack(ARGV[1]))
local now = clock()

local kind = redis.call('TYPE', QUEUE).ok
if kind ~= 'none' and kind ~= 'list' and kind ~= 'set' and kind ~= 'zset' then
    return cmsgpack.pack({ kind })
end

local function parse(entry)
    if entry:sub(1, 1) == 'z' then
        return entry:sub(10), struct.unpack('>d', entry:sub(2, 9))
    end
    return entry:sub(2), 0
end

local function put_back(entry)
    local data, score = parse(entry)
    local into = kind == 'none' and entry:sub(1, 1) or kind:sub(1, 1)
    if into == 'l' then
        redis.call('LPUSH', QUEUE, data)
    elseif into == 's' then
        redis.call('SADD', QUEUE, data)
    else
        redis.call('ZADD', QUEUE, 'NX', string.format('%.17g', score), data)
    end
end

-- The last ones first, so that the first one is at the head in the end.
local function put_back_some(from, most)
    local ids = redis.call('HKEYS', from)
    table.sort(ids, function(a, b) return tonumber(a) > tonumber(b) end)
    for i = 1, math.min(#ids, most or #ids) do
        local entry = redis.call('HGET', from, ids[i])
        redis.call('HDEL', from, ids[i])
        put_back(entry)
        kind = redis.call('TYPE', QUEUE).ok
    end
end

-- A full server refuses nothing after a removal, and this is one.
redis.call('HDEL', TAKEN, '')
for _, id in ipairs(stored) do
    redis.call('HDEL', TAKEN, id)
end
for _, id in ipairs(dead) do
    local entry = redis.call('HGET', TAKEN, id)
    if entry then
        redis.call('HDEL', TAKEN, id)
        redis.call('RPUSH', DEAD, (parse(entry)))
    end
end

if overdue ~= '' then
    local deadline = redis.call('ZSCORE', TAKERS, overdue)
    if deadline and tonumber(deadline) < now then
        put_back_some(OVERDUE, AT_ONCE)
        if redis.call('HLEN', OVERDUE) == 0 then
            redis.call('ZREM', TAKERS, overdue)
        end
    end
end

local ids, entries, differs = {}, {}, false

local function answer(id, entry)
    ids[#ids + 1], entries[#entries + 1] = tonumber(id), (parse(entry))
end

if leaving then
    put_back_some(TAKEN)
elseif redis.call('HLEN', TAKEN) ~= held then
    -- An answer was lost, the server has lost its latest changes, or the taker's time was over.
    differs = true
    local all = redis.call('HGETALL', TAKEN)
    for i = 1, #all, 2 do
        answer(all[i], all[i + 1])
    end
elseif want > 0 then
    local id = first
    local function take(prefix, data)
        redis.call('HSET', TAKEN, string.format('%.0f', id), prefix .. data)
        answer(id, prefix .. data)
        id = id + 1
    end
    local pops = { list = 'LPOP', set = 'SPOP', zset = 'ZPOPMAX' }
    local found = pops[kind] and redis.call(pops[kind], QUEUE, want) or {}
    for i = 1, #found, kind == 'zset' and 2 or 1 do
        local score = kind == 'zset' and struct.pack('>d', tonumber(found[i + 1])) or ''
        take(kind:sub(1, 1) .. score, found[i])
    end
end

local others = redis.call('ZCARD', TAKERS)
if redis.call('HLEN', TAKEN) > 0 then
    others = others - 1 + redis.call('ZADD', TAKERS, string.format('%.0f', now + timeout), taker)
else
    others = others - redis.call('ZREM', TAKERS, taker)
end

local sizes = { list = 'LLEN', set = 'SCARD', zset = 'ZCARD' }
kind = redis.call('TYPE', QUEUE).ok
local left = sizes[kind] and redis.call(sizes[kind], QUEUE) or 0
local late = redis.call('ZRANGEBYSCORE', TAKERS, '-inf', '(' .. string.format('%.0f', now), 'LIMIT', 0, 1)[1]
return cmsgpack.pack({ 'OK', differs, ids, entries, left, others, late or '' })
