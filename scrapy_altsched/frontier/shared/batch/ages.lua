-- When pages were finished, in a crawl that records it, and whether that is long enough ago.
--
-- The field of a page is below 0 then: -1 - the seconds from when this was first recorded to when the page was finished,
-- or found, if it is not yet.  A page from before counts as finished when this began.
--
-- No page is crawled twice in a pass, which is from one restart of the crawl to the next.  A restart drops all that
-- is still to be crawled: what is pending was found in this pass, and so is a duplicate, whatever its age.
if aging and not ages then ages = { now, 0, 0 } end

-- What new pages are stored with, and those that are finished.
local age
local thresholds, finishing = {}, {}
if ages then
    -- The clock may be set back, but no pass reaches into the one before.
    local seconds = math.max(math.floor((now - ages[1]) / 1000), ages[3])
    if restarts then
        seconds = seconds + 1
        ages[2] = seconds
    end
    ages[3] = seconds
    age = digits(-1 - seconds)
else
    age = string.format('%d', math.floor((now - created) / 60000))
end
if aging then
    for i = 1, #aging[1], 2 do thresholds[aging[1][i]] = aging[1][i + 1] end
    for i = 1, #aging[2], 3 do finishing[aging[2][i]] = { KEYS[aging[2][i + 1]], aging[2][i + 2] } end
end

-- Whether the page of this addition was seen, and is old enough to be crawled again.
local function is_due(number, bucket, field)
    local value = thresholds[number] and tonumber(redis.call('HGET', bucket, field) or nil)
    if not value then return false end
    local finished = value < 0 and -1 - value or 0
    return finished < math.min(math.floor((thresholds[number] - ages[1]) / 1000), ages[2])
end

-- One that was forgotten meanwhile does not come back.
local function finish_page(bucket, field)
    if redis.call('HEXISTS', bucket, field) == 1 then redis.call('HSET', bucket, field, age) end
end
