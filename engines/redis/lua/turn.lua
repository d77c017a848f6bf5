-- What a runner calls: ends and claims in one call, and what may come next.

local first_score, peek

-- Whether a job of this entry is ready now, and not left to others: the job, if so.
local function ready_at(q, entry, worker)
    local j = load(q, select(2, parsed(entry)))
    if not j or j.state ~= 'r' or entry_of(j) ~= entry or j.at > q.now then return nil end
    return not (j.suspect and is_others(q, j, worker)) and j or nil
end

-- The first ready job of the lanes, of those that run alone, and of those that have just become
-- due. Only the first 64 entries of each are read: if all of these are stale, it is not known which
-- one is next (true).
local function first_ready(q, worker)
    local k = q.k
    for prio = 0, 3 do
        for from = 0, may_have(q.r, prio) and 48 or -1, 16 do
            local entries = call('LRANGE', k[LANE + prio], from, from + 15)
            for _, entry in ipairs(entries) do
                local j = ready_at(q, entry, worker)
                if j then return j end
            end
            if #entries < 16 then break end
            if from == 48 then return true end
        end
    end
    if q.r[SUSPECTS] > 0 then
        local line_ = line_of('s')
        for _, member in ipairs(call('ZRANGEBYLEX', k[HELD], '[' .. line_, '(' .. line_ .. '\255', 'LIMIT', 0, 64)) do
            local j = ready_at(q, entry_in(member), worker)
            if j then return j end
        end
    end
    for _, entry in ipairs(call('ZRANGEBYSCORE', k[DUE], '-inf', q.now, 'LIMIT', 0, 16)) do
        local j = ready_at(q, entry, worker)
        if j then return j end
    end
end

local function least(times)
    local best
    for at = 1, 10 do
        local time = times[at]
        if time and (not best or time < best) then best = time end
    end
    return best
end

function first_score(q, key, above)
    local found = call('ZRANGEBYSCORE', q.k[key], above and '(' .. whole(above) or '-inf', '+inf', 'WITHSCORES',
        'LIMIT', 0, 1)
    local score = tonumber(found[2])
    return score and score < math.huge and score or nil
end

-- Whether a limit that holds jobs has a place for one of these kinds, among those called.
local function has_place(q, set)
    for _, name in ipairs(call('ZRANGE', q.k[TURN], 0, 63)) do
        for prio = 0, 3 do
            local member = heads(q, name, prio, 1)[1]
            local j = member and load(q, select(2, parsed(entry_in(member))))
            if j and (not set or set[j.kind]) then return true end
            if j then break end
        end
    end
    return false
end

-- What a worker may find, and when something is due next.
function peek(q, worker, set, kinds)
    local k, r, o, now = q.k, q.r, q.o, q.now
    local p = { paused = r[PAUSED], due = first_score(q, DUE, now), expires = first_score(q, EXPIRES) }
    local first = first_ready(q, worker)
    p.ready = first ~= nil
    local lines = names_of_lines(q, 'o', 256)
    p.lines, p.in_line = #lines > 0, false
    for _, name in ipairs(lines) do p.in_line = p.in_line or not set or set[name:sub(2)] ~= nil end
    local is_busy, is_alone = false, false
    if r[SUSPECTS] > 0 then is_busy, is_alone = alone_of(q, worker) end
    p.full = is_busy and is_alone
    local limit, tokens = o.limits.q, nil
    if limit then
        p.full = p.full or limit.at_once ~= nil and call('ZCARD', k[RUN]) >= limit.at_once
        if limit.count and type(first) == 'table' then
            tokens = tokens_at(q, 'q', limit, first.cost or 1)
            p.full = p.full or tokens > now
        end
    end
    local held = call('ZRANGEBYLEX', k[HELD], '[k', '(o', 'LIMIT', 0, 1)[1] or call('ZRANGEBYLEX', k[HELD], '[t',
        '(u', 'LIMIT', 0, 1)[1]
    p.limited = o.limited and (p.full and p.ready or held ~= nil)
    local refill = first_score(q, REFILL)
    if held and (call('EXISTS', k[TURN]) == 1 or refill and refill <= now or r[WALK] == 1) then
        p.lines = true
        p.place = has_place(q, set) or refill and refill <= now or r[WALK] == 1
    end
    p.room = not o.max_waiting or waiting_of(q) < o.max_waiting or p.expires ~= nil and p.expires <= now
    p.next = least({ p.due, p.expires, tokens and tokens > now and tokens, r[PAUSED] > now and r[PAUSED] < 2 ^ 62
        and r[PAUSED],
        first_score(q, DONE), first_score(q, DEAD), first_score(q, RUN), refill and refill > now and refill,
        (r[LATEST_SEEN] > now + 1000 or r[ENDINGS] > 0) and now, r[NEXT_TICK] < LATEST and r[NEXT_TICK] })
    return p
end

local function peek_row(q, worker, set)
    local p = peek(q, worker, set)
    local words = {}
    for _, one in ipairs({ { p.ready, 'ready' }, { p.full, 'full' }, { p.limited, 'limited' }, { p.room, 'room' },
        { p.in_line or p.place, 'kinds' }, { not (p.in_line or p.place) and p.lines, 'others' } }) do
        if one[1] then words[#words + 1] = one[2] end
    end
    return { 'peek', p.next or false, name_of(q) or false, false, false, p.expires or false, false, false,
        p.paused >= 2 ^ 62 and ENDLESS or p.paused, q.now, false, table.concat(words, ' '), false, false, false, false,
        p.due }
end

-- Whether limits or endings may bring something sooner than the last peek said.
local function has_bells(q)
    local o = q.o
    if q.r[ENDINGS] > 0 then return true end
    return o.limited and (o.limits.q or o.rates or q.r[LINES] == 1 and call('EXISTS', q.k[TURN]) == 1)
end

local ENDS = set_of('finished failed snoozed buried put_back crashed')

local function read_ends(q)
    local ends = {}
    for at = 1, count(q, 256) or 0 do
        local from = q.at
        local n, token, how, time, err, data = unpack(q.args, from + 1, from + 6)
        local number_ = tonumber(token)
        if how == 'finished' and time == '' and err == '' and data == '' and number_ and number_ % 1 == 0 then
            q.at, ends[at] = from + 6, { n, number_, how }
        else
            local one = { arg(q), number(q), arg(q), number(q), text(q), text(q) }
            if not one[2] then refuse('an end has the number of a job, and a token') end
            if not ENDS[one[3]] then refuse('there is no end ' .. quoted(one[3])) end
            if one[6] then check_size('the data of a job', one[6], q.o.max_payload) end
            ends[at] = one
        end
    end
    return ends
end

-- wl_turn: ends attempts and claims jobs. Arguments: asked (flag: 0 only ends), most, due_by,
-- lease, worker (text), tick (flag: 1 now, 0 at most once a second, empty: not), arm (ms for which
-- the caller listens if there is no job), due_since, about (text: JSON), kinds (a list, or empty:
-- all), and a list of ends: {number, token, end (finished, failed, snoozed, buried, put_back,
-- crashed), at (a time; up to 0: minus a delay), error (text), data (text)}. Answers rows:
--
-- * told: a job is in another state: id, state (nil: it is gone), data, error; outcome: anew, or
--   nil
-- * line: for a log; outcome: died, taken_back, held, skipped, unmade, set_back; id, kind,
--   failures, error
-- * more: things that did not fit: number
-- * finished: all ends have counted: state (nil: the jobs are gone)
-- * ended: outcome (counted, finished, halt), state, more: their places among the ends, from 1 on,
--   with commas
-- * claimed: number, id (nil: `~` and the number), token, kind, payload (nil: see `wl_load`),
--   pushed, since; priority: that, and 4 times the place in the claim; more (JSON); data, error,
--   failures and crashes (nil: none), due
-- * again: another claim at once may find more
-- * lined: jobs of other kinds went into their lines; kind: one that no worker takes
-- * short, full: fewer jobs than wanted, or as many; the last peek holds
-- * peek: number: when to look next; id: the queue; token: when a job expires; pushed: the end of a
--   pause; due; since: now; more: words: ready, full, limited, room, kinds, others
define('wl_turn', { 'allow-oom' }, function(q)
    local args = q.args
    local asked, most, due_by = flag(q, 2), number(q, 3) or 0, args[4] ~= '' and number(q, 4) or nil
    local lease, worker, ticks = args[5] ~= '' and bounded(number(q, 5)) or nil, text(q, 6), flag(q, 7)
    local arm, since = args[8] ~= '' and number(q, 8) or nil, args[9] ~= '' and number(q, 9) or nil
    local about = args[10] ~= '' and text(q, 10) or nil
    q.at = 10
    local set, kinds = kinds_of(q)
    local ends, rows, r = read_ends(q), {}, q.r
    if lease and lease <= 0 then refuse('a lease has 1 millisecond or more, or is empty: that of the queue') end
    if worker and #worker > 255 then refuse('the name of a worker has up to 255 bytes') end
    most = max(min(most, 64), 0)
    if about then note_workers(q, about) end
    if asked and ticks ~= nil and (ticks or q.now < r[TICKED] or q.now - r[TICKED] > 999) then
        tick(q, since ~= nil or r[WATCHED] > q.real) else move_due(q)
    end
    if #ends > 0 then end_many(q, ends, rows) end
    local has_more = r[ENDINGS] > 0 and resolve(q)
    local c = { most = most, worker = worker, got = 0, jobs = {}, texts = {}, again = false, limited = false }
    -- (What is rare is no part of it without need: a larger table costs more.)
    if set then c.set, c.kinds = set, kinds end
    if lease then c.lease = lease end
    if due_by then c.due_by = due_by end
    local claims = asked and most > 0 and r[PAUSED] <= q.now
    if claims then claim(q, c, rows) end
    -- (A claim ends jobs that are needless now, and others may wait for these.)
    if claims and c.got < most and (c.got == 0 and (has_more or r[ENDINGS] > 0) or c.again) then
        rows[#rows + 1] = { 'again' }
    end
    if c.lined then
        rows[#rows + 1] = { 'lined' }
        add_untaken(q, rows)
    end
    if asked and (ticks or c.got < most) then
        if ticks or c.got == 0 and most > 0 or c.again or has_bells(q) then
            -- A push before this may have rung no one. This one has looked, so the next one rings.
            if c.got == 0 and most > 0 and arm then r[BELL] = max(r[BELL], q.real + min(arm, 60000)) end
            rows[#rows + 1] = peek_row(q, worker, set)
        else
            rows[#rows + 1] = { 'short' }
        end
    elseif c.got > 0 and #ends > 0 and not has_bells(q) then
        rows[#rows + 1] = { 'full' }
    end
    return add_told(q, rows)
end)

-- wl_peek_now: the row `peek`. Arguments: worker (text), about (text), kinds (a list, or empty:
-- all).
define('wl_peek_now', { 'allow-oom' }, function(q)
    local worker, about = text(q), text(q)
    local set = kinds_of(q)
    note_workers(q, about)
    return { peek_row(q, worker, set) }
end)

-- wl_load: jobs of a claim whose payload did not fit. Arguments: a list of {number, token}. Answers
-- rows of those that the caller has, up to 64 MB of them: job, token, id, kind, payload, data,
-- failures, crashes, pushed, more, error.
define('wl_load', { 'no-writes' }, function(q)
    local rows, room = {}, 67108864
    for _ = 1, count(q, 256) or 0 do
        local n, token = number(q), number(q)
        local j = load(q, n or 0)
        if j and j.state == 'x' and j.place == token and (room > 0 or #rows == 0) then
            local data = call('HGET', q.k[DATA], n)
            room = room - #j.payload - (data and #data or 0)
            if room >= 0 or #rows == 0 then
                rows[#rows + 1] = { n, token, id_of(j), j.kind, j.payload, data, j.fail, j.crash, j.pushed, more_of(q,
                    j) or false, j.err }
            end
        end
    end
    return rows
end)

local function read_leases(q)
    local leases = {}
    for at = 1, count(q, 256) or 0 do leases[at] = { number(q), number(q) } end
    return leases
end

-- wl_renew: renews leases. Arguments: lease (ms; empty: that of the queue), silent (flag: the end
-- of this lease is a failure of a silent worker), stops (flag: the worker stops), about (text), and
-- a list of {number, token}. Answers the numbers of those that are still the caller's.
define('wl_renew', { 'allow-oom' }, function(q)
    local lease, silent, stops, about = bounded(number(q)), flag(q), flag(q), text(q)
    local held = {}
    if lease and lease <= 0 then refuse('a lease has 1 millisecond or more, or is empty: that of the queue') end
    local leases = read_leases(q)
    note_workers(q, about)
    note_time(q)
    for _, one in ipairs(leases) do
        local j = load_part(q, one[1] or 0)
        if j and j.state == 'x' and j.place == one[2] then
            j.at, j.renewed = q.now + (lease or q.o.lease), q.now
            if silent ~= nil then j.silent = silent end
            if stops ~= nil then j.stopping = stops end
            write_state(q, j)
            call('ZADD', q.k[RUN], j.at, whole(j.n))
            held[#held + 1] = j.n
        end
    end
    return held
end)

-- wl_note_stop: the worker stops: if it dies before it has ended these jobs, that is no crash.
-- Arguments: about (text), and a list of {number, token}.
define('wl_note_stop', { 'allow-oom' }, function(q)
    local about = text(q)
    local leases = read_leases(q)
    note_workers(q, about)
    for _, one in ipairs(leases) do
        local j = load_part(q, one[1] or 0)
        if j and j.state == 'x' and j.place == one[2] then
            j.stopping = true
            write_state(q, j)
        end
    end
    return true
end)

-- wl_ended_by: what became of ends whose answer was lost. Arguments: a list of {number, token}.
-- Answers a row for each, in order: held (it was not written), counted or gone, and the state.
define('wl_ended_by', { 'no-writes' }, function(q)
    local rows = {}
    for at, one in ipairs(read_leases(q)) do
        local j = load_part(q, one[1] or 0)
        local outcome = not j and 'gone' or j.place ~= one[2] and 'gone' or j.state == 'x' and 'held'
            or not is_live(j) and 'counted' or 'gone'
        rows[at] = { outcome, j and shown_state(j, q.now) or nil }
    end
    return rows
end)
