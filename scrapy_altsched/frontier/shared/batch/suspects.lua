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
