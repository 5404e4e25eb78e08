-- The end: twice in a row nothing is left to do, no worker brings more, and nothing has happened.  A crawl that
-- is paused does not end.
local pending, waiting = redis.call('ZCARD', PENDING), redis.call('ZCARD', DELAYED)
local feeders = redis.call('ZCOUNT', FEEDING, digits(now), '+inf')
if changed then n.version = n.version + 1 end
local is_idle = pending == 0 and waiting == 0 and n.leased == 0 and feeders == 0
if observed == n.version and is_idle and paused == 0 and state == 'open' then
    state = 'finished'
end
-- A worker that is told so may ask no more.
if state == 'finished' then redis.call('ZREM', DEADLINES, token) end
local late = redis.call('ZRANGEBYSCORE', DEADLINES, '-inf', '(' .. digits(now), 'LIMIT', 0, 1)[1]

local first = waiting > 0 and redis.call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2]

local stored = { 'crawl', crawl, 'state', state, 'about', about, 'previous', previous, 'protocol',
    ages and AGED or paused > 0 and PAUSED or is_paced and PACED or UNPACED, 'created', digits(created), HELD .. token, digits(redis.call('HLEN', LEASES)) }
if is_paced then
    for name, value in pairs(describe_pace()) do stored[#stored + 1], stored[#stored + 2] = name, value end
end
if ages then stored[#stored + 1], stored[#stored + 2] = 'ages', cmsgpack.pack(ages) end
for name, value in pairs(n) do stored[#stored + 1], stored[#stored + 2] = name, digits(value) end
redis.call('HSET', META, unpack(stored))
if leaving then redis.call('HDEL', META, HELD .. token) end

local reply = { 'OK', crawl, { n.accepted, pending, n.leased, n.done, n.dead, feeders, n.version, n.epoch, reopened,
        waiting, first and math.max(0, tonumber(first) - now) or -1, redis.call('ZCARD', FAILED), n.dropped,
        pending > 0 and next_rest_in() or -1, paused, stops, n.seen or -1, ages and now or -1 },
    seen, full, void, skipped, keys, {}, state, late or '', number == 1 and about or '', suspicions, watched,
    ticks, permits, is_paced and { limits[1], limits[2], limits[3], differing } or {}, over }
redis.call('HSET', WORKERS, token, struct.pack('>I8', number) .. cmsgpack.pack(reply))
redis.call('ZADD', HEARD, digits(now), token)
reply[9] = rows
return cmsgpack.pack(reply)
