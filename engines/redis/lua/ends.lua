-- The ends of attempts, and what they mean for the job.

local shown_time, take_back, end_many

-- A number from 0 to 1 that differs from call to call. A test has always 1, the longest back-off.
local function chance(q)
    if q.args[1] ~= '' then return 1 end
    q.drawn = (q.drawn or 0) + 1
    local x = math.sin(q.us % 86400000000 + q.drawn * 7919) * 43758.5453
    return x - floor(x)
end

-- The pause before the next attempt; null: none. `attempt` is the number of failed ones.
local function pause_of(retry, attempt, chance_)
    if retry.attempts and attempt >= retry.attempts then return nil end
    local first, cap = min(retry.first_ms or 1000, 3.2e16), min(retry.cap_ms or 3600000, 3.2e16)
    local jitter, growth = max(min(retry.jitter or 0, 1), 0), retry.growth or 'doubling'
    local times = growth == 'doubling' and 2 ^ min(attempt - 1, 200)
        or growth == 'factor' and math.exp(min(math.log(max(retry.factor or 2, 1)) * (attempt - 1), 200))
        or growth == 'quadratic' and attempt * attempt or 1
    local pause = growth == 'fixed' and first or min(first * times, cap)
    pause = min(max(pause * (1 - jitter * (1 - chance_)), 0), 3.2e16)
    return math.ceil(pause < 1e9 and floor(pause * 1e6 + 0.5) / 1e6 or pause)
end

-- How an attempt whose lease has expired ends. A stop wins: it has cut the attempt short.
local function end_of_lease(j) return j.stopping and 'put_back' or j.silent and 'failed' or 'crashed' end

-- What becomes of a job whose attempt has ended: finish, die or wait (until it is due; `named`: by
-- the user), with this error and these numbers of failures and crashes. A time up to 0 is a delay.
local function next_of(q, j, how, at, err, lasted)
    local o, time = q.o, at and (at <= 0 and q.now - at or at)
    local n = { next = 'wait', due = 0, named = at ~= nil and at > 0, crash = j.crash,
        fail = o.heal_after_ms and lasted >= o.heal_after_ms and 0 or j.fail }
    if how == 'finished' then n.next = 'finish'
    elseif how == 'snoozed' then n.due = time or 0
    elseif how == 'buried' then n.next, n.fail, n.err = 'die', n.fail + 1, err or 'no reason was given'
    elseif how == 'failed' then
        n.fail, n.err = n.fail + 1, err or 'no reason was given'
        local pause = pause_of(j.retry or o.retry, n.fail, chance(q))
        n.next = pause and 'wait' or 'die'
        n.due = time or q.now + (pause or 0)
    elseif how == 'crashed' then
        n.crash = n.crash + 1
        if o.max_crashes and n.crash >= o.max_crashes then
            n.next, n.err = 'die', 'its process died ' .. (n.crash == 1 and 'once' or n.crash .. ' times')
                .. ' while it ran'
        elseif n.crash > 1 then
            -- Each process that is up takes it in turn, so a job that kills them all must not come
            -- back at once.
            n.due = q.now + math.ceil(min(1000 * 2 ^ min(n.crash - 2, 30), 300000) * chance(q))
        end
    end
    return n
end

-- A run that succeeded: twins that were pushed before it are needless.
local function note_success(q, j)
    local since = max(j.place, remembered(q, 'e', j.fp) or 0)
    remember(q, 'e', j.fp, q.now + 86400000, whole(q.now + 86400000) .. ' ' .. whole(since))
end

-- Ends an attempt of a running job: finished, failed (again at `at`, or as its retry says), snoozed
-- (until `at`), buried, put_back or crashed. Returns its state; null: it is gone.
local function end_one(q, j, how, at, err, data, lasted)
    local k, id = q.k, id_of(j)
    local n = next_of(q, j, how, at, err, lasted or q.now - j.since)
    local suspect = how == 'crashed' and j.crash >= 1 or how == 'put_back' and j.suspect or false
    call('ZREM', k[RUN], whole(j.n))
    leave_places(q, j)
    if data then
        call('HSET', k[DATA], whole(j.n), data)
        j.data, j.side = data, true
    end
    if how == 'finished' and j.skip then note_success(q, j) end
    if j.resub and (n.next == 'finish' or n.next == 'die' and n.crash == j.crash) then
        -- The push asked for a new run, which has attempts of its own.
        n.crash = n.next == 'finish' and 0 or n.crash
        n.err = n.next == 'die' and n.err or ''
        n.next, n.fail, n.due, n.named = 'anew', 0, j.resub, j.resubd == nil
        if j.skip then j.sf = next_number(q) end
        if call('HDEL', k[SHOWN], whole(j.n)) == 1 then tell(q, id, nil, nil, nil, 'anew') end
    end
    if n.next == 'finish' or n.next == 'die' then
        if n.next == 'die' then
            j.fail, j.crash, j.err = n.fail, n.crash, n.err
            if how == 'crashed' then line(q, 'died', id, j.kind, j.fail, n.err) end
        end
        j.resub, j.resubd = nil, nil
        return settle(q, j, n.next == 'die')
    end
    set_suspect(q, j, suspect)
    local anew = n.next == 'anew'
    j.state, j.at, j.place = 'r', max(n.due, q.now), n.due > q.now and j.n or next_number(q)
    j.fail, j.crash, j.due, j.named = n.fail, n.crash, n.due > 0 and n.due or nil, n.named or nil
    j.since = anew and n.due > q.now and j.resubd or q.now
    if n.err then j.err = n.err ~= '' and n.err or nil end
    if anew then j.resub, j.resubd = nil, nil end
    j.silent, j.stopping, j.worker, j.alone = nil, nil, nil, nil
    write_state(q, j)
    enter_line(q, j)
    local state = shown_state(j, q.now)
    tell(q, id, state, data)
    return state
end

function shown_time(time)
    return time < 1000 and whole(time) .. 'ms' or ('%.3f'):format(time / 1000):gsub('%.?0+$', '') .. 's'
end

-- Takes back a job whose lease has expired.
function take_back(q, j)
    local id, how, silent, worker = id_of(j), end_of_lease(j), j.silent, j.worker
    local heard, ended = max(j.since, j.renewed or 0), j.at
    local err = 'its worker was silent for ' .. shown_time(q.o.lease)
    -- Its worker has not ended it, so its token counts no more.
    j.place = next_number(q)
    -- The silence at the end of a run is no part of it. Of a job whose process died, its length is
    -- unknown.
    local state = end_one(q, j, how, nil, how == 'failed' and err or nil, nil, silent and ended - q.o.lease - j.since
        or 0)
    local lives = state and state ~= 'dead' and state ~= 'finished'
    if how == 'crashed' and lives then
        line(q, 'taken_back', id, j.kind, j.fail, 'its worker ' .. (worker and quoted(worker) .. ' ' or '')
            .. 'was not heard of for '
            .. shown_time(floor(max(ended - heard, 0) / 10 + 0.5) * 10))
    elseif how == 'failed' then
        line(q, 'taken_back', id, j.kind, j.fail, err)
        if not lives then line(q, 'died', id, j.kind, j.fail, err) end
    end
end

-- Writes the ends of jobs that leave nothing but their records: lists of their numbers as texts, and
-- of their states; of `ends`, those at these places (nil: all) have their data.
local function finish_plain(q, numbers, states, ends, places)
    local k, keep = q.k, q.o.keep
    if q.r[WATCHED] > q.real then
        for at = 1, #numbers do note_change(q, '~' .. numbers[at], keep ~= 0 and 'finished' or nil) end
    end
    call('ZREM', k[RUN], unpack(numbers))
    if keep == 0 then
        call('HDEL', k[JOB], unpack(numbers))
        call('HDEL', k[STATE], unpack(numbers))
        return
    end
    local values, times, gone = {}, {}, keep < 0 and EVER or q.now + min(keep, LATEST)
    local tail, until_ = pack('>I7I7B', q.now, gone, 0), keep < 0 and '+inf' or whole(gone)
    for at, n in ipairs(numbers) do
        -- (The counts of failures and crashes, and the token, stay as they are.)
        local state, data = states[at], ends[places and places[at] or at][6]
        local flags = data and 'f\224' or bits(state:byte(2), 64) > 0 and 'f`' or 'f '
        values[2 * at - 1], values[2 * at] = n, flags .. state:sub(3, 15) .. tail
        times[2 * at - 1], times[2 * at] = until_, n
        if data then call('HSET', k[DATA], n, data) end
    end
    call('HSET', k[STATE], unpack(values))
    call('ZADD', k[DONE], unpack(times))
end

-- The token in the state of a running job; nil: the state is damaged.
local function token_of(state) return #state >= 29 and unstruct('>I7', state, 9) or nil end

-- Ends one attempt of a list by itself. `groups` has, by outcome and state, the places of the ends.
local function end_one_of(q, e, state, groups, at)
    local outcome = 'halt'
    local j = state and state:byte() == 120 and token_of(state) == e[2] and load(q, tonumber(e[1]))
    if j and j.state == 'x' then
        local before = #q.told
        state = end_one(q, j, e[3], e[4], e[5], e[6])
        outcome = e[3] == 'finished' and (state == 'finished' or not state) and 'finished' or 'counted'
        -- The caller knows the data of those that have finished.
        if outcome == 'finished' then q.told[before + 1] = nil end
    else
        state = nil
    end
    local name = outcome .. ' ' .. (state or '')
    groups[name] = groups[name] or { outcome, state or false, {} }
    table.insert(groups[name][3], at)
end

-- What a running job leaves if this attempt of it ends well: the bits of its state that are places;
-- 0: its records alone. Null: more, or it is not the job's.
local function left_by(state, token)
    if #state < 30 then return nil end
    local code, own, _, _, place, _, _, length = unstruct('>BBI4I2I7I7I7B', state)
    -- (Neither alone nor with values beside its own.)
    if code ~= 120 or place ~= token or #state ~= 30 + length or bits(own, 132) > 0 then return nil end
    return bits(own, 88)
end

-- Lets these jobs leave their places, by those bits. Returns the set of those that leave no more.
local function leave_all(q, numbers, own)
    local values, all, names, gone = values_of(q.k[JOB], numbers), {}, {}, {}
    for at = 1, #numbers do
        local value = values[at]
        -- (8: a place of its key, and no other one.)
        local key = value and own[at] == 8 and key_in(value)
        local places = value and not key and places_of(value, own[at])
        if key then
            names[#names + 1] = 'k' .. key
            all[at] = names[#names]
        elseif places then
            if places.kcount and places.key then names[#names + 1] = 'k' .. places.key end
            all[at] = places
        end
    end
    read_taken(q, names)
    for at = 1, #numbers do
        local one = all[at]
        if type(one) == 'string' then leave_place(q, one) elseif one then leave_places(q, one) end
        gone[numbers[at]] = one ~= nil
    end
    return gone
end

-- Ends attempts of which some leave more than their records: `left` is true of the others.
local function end_mixed(q, ends, numbers, states, left, rows)
    local plain, of, places, groups, changed = {}, {}, {}, {}, {}
    for at, n in ipairs(numbers) do
        if left[at] then plain[#plain + 1], of[#of + 1], places[#places + 1], changed[n] = n, states[at], at, true end
    end
    if plain[1] then
        finish_plain(q, plain, of, ends, places)
        local state = q.o.keep ~= 0 and 'finished' or false
        groups['finished ' .. (state or '')] = { 'finished', state, places }
    end
    for at, n in ipairs(numbers) do
        if not left[at] then
            local state = states[at]
            if changed[n] then state = call('HGET', q.k[STATE], n) end
            changed[n] = true
            end_one_of(q, ends[at], state, groups, at)
        end
    end
    local first = next(groups)
    if groups[first][1] == 'finished' and not next(groups, first) then
        rows[#rows + 1] = { 'finished', false, false, false, groups[first][2] or nil }
        return
    end
    for _, group in pairs(groups) do
        rows[#rows + 1] = { 'ended', false, false, group[1], group[2], false, false, false, false, false, false,
            table.concat(group[3], ',') }
    end
end

-- Ends attempts: a list of {number as text, token, end, at, error, data}. Answers a row for those
-- of each outcome and state, or one row `finished`, if all have ended well and are in one state.
function end_many(q, ends, rows)
    local numbers, left, seen, placed, own, rest = {}, {}, #ends > 1 and {} or nil, nil, nil, 0
    for at = 1, #ends do numbers[at] = ends[at][1] end
    local states, is_free = values_of(q.k[STATE], numbers), q.r[EDGES] == 0
    for at = 1, #ends do
        local e, n, state = ends[at], numbers[at], states[at]
        -- (One that comes twice has changed.)
        local bits_ = is_free and state and e[3] == 'finished' and not (seen and seen[n]) and left_by(state, e[2])
        left[at] = bits_
        if seen then seen[n] = true end
        if bits_ and bits_ > 0 then
            placed, own = placed or {}, own or {}
            placed[#placed + 1], own[#own + 1] = n, bits_
        end
        if not bits_ then rest = rest + 1 end
    end
    local gone = placed and leave_all(q, placed, own)
    for at = 1, gone and #ends or 0 do
        if left[at] and left[at] > 0 and not gone[numbers[at]] then left[at], rest = false, rest + 1 end
    end
    if rest > 0 then return end_mixed(q, ends, numbers, states, left, rows) end
    finish_plain(q, numbers, states, ends)
    rows[#rows + 1] = { 'finished', false, false, false, q.o.keep ~= 0 and 'finished' or nil }
end
