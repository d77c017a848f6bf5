-- Claims: the jobs that may run now, in their order: by priority, then by time and place. Each
-- eighth claim of one job goes by priority in reverse, so that no priority starves.

local is_others, alone_of, claim

-- Whether a job that has to run alone is left to other processes: another one has taken it up, or
-- this one has, but its other jobs did not end within a lease.
function is_others(q, j, worker)
    local until_ = j.alone
    if not until_ then return false end
    if j.worker ~= worker then return until_ > q.now end
    return until_ <= q.now and until_ + q.o.lease > q.now
end

-- Whether a job of this process runs, whether one of its jobs runs alone or is about to, and whether
-- one of these kinds that is to run alone is due. (All without a name count as one process.)
function alone_of(q, worker, set)
    local is_busy, is_alone, is_due, k = false, false, false, q.k
    local running = call('ZRANGE', k[RUN], 0, 9999)
    for from = 1, #running, 1000 do
        local states = call('HMGET', k[STATE], unpack(running, from, min(from + 999, #running)))
        for _, state in ipairs(states) do
            if state:sub(31, 30 + state:byte(30)) == (worker or '') then
                is_busy = true
                is_alone = is_alone or bits(state:byte(2), 4) > 0
            end
        end
    end
    local line_ = line_of('s')
    for _, member in ipairs(call('ZRANGEBYLEX', k[HELD], '[' .. line_, '(' .. line_ .. '\255', 'LIMIT', 0, 256)) do
        local j = load(q, select(2, parsed(entry_in(member))))
        if j and j.alone and j.alone > q.now and j.worker == worker then is_alone = true end
        is_due = is_due or j and j.at <= q.now and (not set or set[j.kind])
    end
    return is_busy, is_alone, is_due
end

-- Moves a job to a limit that holds it, out of the place in which the claim has found it.
function hold_at(q, j, name)
    local was_ready = j.state == 'r'
    if not was_ready then unhold(q, j, j.held) elseif j.suspect then unhold(q, j, 's') end
    j.state, j.held = 'h', name
    write_state(q, j)
    hold(q, j, name)
    if was_ready then line(q, 'held', id_of(j), j.kind, j.fail, name) end
end

-- Whether a job goes into the line of its kind, since the claim is for others. Only what has
-- nothing before it that stays: so no entry stays in the lane.
local function meets_other(c, s, j)
    if not s.lane or s.keeps then return 'kept' end
    local name = j.kind .. j.prio
    local to = c.others[name] or { j, {}, j.kind, j.prio }
    c.others[name] = to
    to[2][#to[2] + 1] = entry_of(j)
    return 'moved'
end

-- Decides on one job: taken, moved (away from its place), kept, full (so are all behind it) or
-- stop.
local function look_at(q, c, j, s)
    local o = q.o
    -- (The second look of a claim may meet what the first one has taken.)
    if c.mine[j.n] then return 'moved' end
    if c.due_by and c.due_by < q.now and (j.due or 0) > c.due_by then return 'kept' end
    if c.set and not c.set[j.kind] then return meets_other(c, s, j) end
    if j.suspect and is_others(q, j, c.worker) or not j.suspect and c.is_alone then return 'kept' end
    local own = j.state == 'h' and j.held or nil
    local full = o.limited and full_limit(q, j, own, c.awaited)
    if full then
        c.touched[full] = true
        if j.at > q.now then return 'kept' end
        if full == own then return 'full' end
        hold_at(q, j, full)
        c.has_held = true
        return 'moved'
    end
    local err, skipped = needless(q, j)
    if err or skipped then
        end_unrun(q, j, err, skipped)
        c.again = true
        -- (Others may have waited for it, and come before those behind it.)
        return q.r[ENDINGS] > 0 and 'stop' or 'moved'
    end
    if j.suspect and (#c.jobs > 0 or c.is_busy) then
        -- Running jobs of its process end first, and no other begins there meanwhile.
        if #c.jobs == 0 and (j.alone or 0) <= q.now then
            j.worker, j.alone = c.worker, q.now + o.lease
            write_state(q, j)
            -- (One that is not due yet is taken up, too, and is looked for there.)
            hold(q, j, 's')
        end
        return 'stop'
    end
    local limit = o.limits.q
    if limit and limit.count then
        if tokens_at(q, 'q', limit, j.cost or 1) > q.now then return 'stop' end
        take_tokens(q, 'q', limit, j.cost or 1)
    end
    if j.state == 'h' then unhold(q, j, j.held, true) elseif j.suspect then unhold(q, j, 's') end
    if o.limited then
        for _, name in ipairs(limits_for(q, j)) do
            local bounds = bounds_of(q, name)
            c.touched[name] = true
            if bounds.count then take_tokens(q, name, bounds, j.cost or 1) end
        end
        take_places(q, j)
    end
    c.mine[j.n] = true
    return 'taken'
end

-- Looks at the jobs of these sources in order, of one priority. True: the claim is over.
local function look_through(q, c, sources, prio)
    while true do
        local best, from
        for _, s in ipairs(sources) do
            local one = next_of(q, c, s)
            local j = one and one[1]
            if j and j.prio == prio and (not best or j.at < best[1].at or j.at == best[1].at
                and (j.place < best[1].place or j.place == best[1].place and j.n < best[1].n)) then
                best, from = one, s
            end
        end
        if not best then return false end
        local j = best[1]
        local what = look_at(q, c, j, from)
        if what == 'stop' then return true end
        from.first = from.first + 1
        if what == 'full' then
            from.jobs, from.is_over = {}, true
        elseif what == 'kept' then
            from.keeps = true
        else
            from.passed[best[2]] = true
            if from.is_turn then from.jobs, from.first, from.is_over = {}, 1, false end
        end
        if what == 'taken' then
            c.jobs[#c.jobs + 1] = j
            if #c.jobs >= c.most or j.suspect then return true end
        end
    end
end

-- The lines of kinds that a claim reads.
local function lines_for(q, c, most)
    local names = names_of_lines(q, 'o', c.set and 64 or most)
    local lines = {}
    if #names < 64 or not c.set then
        for _, name in ipairs(names) do
            if not c.set or c.set[name:sub(2)] then lines[#lines + 1] = name:sub(2) end
        end
    else
        for _, kind in ipairs(c.kinds) do
            local line_ = line_of('o' .. kind)
            if first_in(q, line_, line_) then lines[#lines + 1] = kind end
        end
    end
    return lines
end

local function take_carefully(q, c, order)
    local o, r = q.o, q.r
    c.awaited, c.others = {}, {}
    if r[SUSPECTS] > 0 then
        c.is_busy, c.is_alone = alone_of(q, c.worker)
        if c.is_busy and c.is_alone then return end
    end
    if o.limits.q and o.limits.q.at_once then c.most = min(c.most, o.limits.q.at_once - call('ZCARD', q.k[RUN])) end
    if c.most <= #c.jobs then return end
    -- To put jobs of other kinds into their lines, it reads more than it takes.
    c.looks, c.piece, c.short = c.set and 3584 or 224, c.set and 64 or c.most + 1, c.most
    local steady, all = {}, {}
    local names = c.limited and called(q) or {}
    if r[SUSPECTS] > 0 then names[#names + 1] = 's' end
    local lines = r[LINES] == 1 and lines_for(q, c, 256) or {}
    for _, name in ipairs(names) do
        if order == NORMAL and (name:byte() ~= 116 or not c.set or c.set[name:sub(2)]) then
            steady[#steady + 1] = source(q, 'name', name)
        end
    end
    for _, prio in ipairs(order) do
        local sources = {}
        if may_have(r, prio) then sources[1] = source(q, 'lane', LANE + prio, prio) end
        for _, kind in ipairs(lines) do sources[#sources + 1] = source(q, 'chunks', kind, prio) end
        if order == REVERSE then
            for _, name in ipairs(names) do sources[#sources + 1] = source(q, 'name', name, prio) end
        end
        for _, s in ipairs(sources) do all[#all + 1] = s end
        for _, s in ipairs(steady) do sources[#sources + 1] = s end
        if look_through(q, c, sources, prio) then break end
    end
    for _, s in ipairs(all) do leave_source(q, s) end
    for _, to in pairs(c.others) do
        for from = 1, #to[2], 64 do
            local entries = { unpack(to[2], from, min(from + 63, #to[2])) }
            local first = from == 1 and to[1] or load(q, select(2, parsed(entries[1])))
            put_in_line(q, to[3], to[4], first, entries)
        end
        c.lined, q.ready = true, q.ready + 1
    end
    -- Those that hold no job, and if nothing was found, all others, too: the next ones have their
    -- turn.
    for _, s in ipairs(steady) do
        if s.name ~= 's' and (#c.jobs == 0 or s.is_over and #s.all == 0) then c.touched[s.name] = true end
    end
    c.again = c.again or c.has_held and q.freed and #c.jobs < c.most
end

-- Takes a job that is not due yet, for a claim that takes jobs due by a later time.
local function take_early(q, c)
    c.awaited, c.others, c.looks = {}, {}, 0
    local found = {}
    for _, entry in ipairs(call('ZRANGEBYSCORE', q.k[DUE], '(' .. whole(q.now), c.due_by, 'LIMIT', 0, 256)) do
        local _, n = parsed(entry)
        local j = load(q, n)
        if j and j.state == 'r' and entry_of(j) == entry and (not c.set or c.set[j.kind]) then
            found[#found + 1] = { j, id_of(j) }
        end
    end
    -- Of those due at the same time, by their ids.
    table.sort(found, function(a, b)
        if a[1].at ~= b[1].at then return a[1].at < b[1].at end
        return a[2] < b[2]
    end)
    -- (One that is left to others is ready.)
    local is_due
    if q.r[SUSPECTS] > 0 then c.is_busy, c.is_alone, is_due = alone_of(q, c.worker, c.set) end
    if is_due or c.is_busy and c.is_alone then return end
    local most = q.o.limits.q and q.o.limits.q.at_once
    if most and call('ZCARD', q.k[RUN]) >= most then return end
    for _, one in ipairs(found) do
        local what = look_at(q, c, one[1], { keeps = true })
        if what == 'stop' then return end
        if what == 'taken' then
            call('ZREM', q.k[DUE], entry_of(one[1]))
            c.jobs[1] = one[1]
            return
        end
    end
end

-- Claims jobs, and adds their rows. c: most, set and kinds, due_by, worker, lease. It sets c.again
-- (another claim at once may find more) and c.lined (jobs of other kinds went into their lines).
function claim(q, c, rows)
    local r, o, most = q.r, q.o, c.most
    -- Each eighth job is of the lowest priority.
    local eighths = r[CLAIMS] % 8 + most
    local low = (eighths - eighths % 8) / 8
    local has_lines = r[LINES] == 1 and call('ZRANGEBYLEX', q.k[HELD], '[k', '(w', 'LIMIT', 0, 1)[1] ~= nil
    -- (Limits that were called, though they hold no job now, are looked at once more.)
    if r[LINES] == 1 and not has_lines and not (q.o.limited and call('EXISTS', q.k[TURN], q.k[REFILL]) > 0) then
        r[LINES] = 0
    end
    c.limited = o.limited or has_lines and call('EXISTS', q.k[TURN]) == 1 or r[WALK] == 1
    local is_free = r[LINES] == 0 and r[WALK] == 0 and not (o.t_limits or o.q_limits or o.rates)
    local is_careful = c.limited and not is_free or has_lines or r[SUSPECTS] > 0 or c.set or c.due_by and c.due_by < q.now
    if is_careful or c.limited or c.due_by then c.touched, c.mine, c.awaited, c.keyed = {}, {}, {}, {} end
    if is_careful then
        if most > low then
            c.most = most - low
            take_carefully(q, c, NORMAL)
        end
        c.most = most
        local runs_alone = c.jobs[1] and c.jobs[1].suspect
        if #c.jobs < most and low > 0 and not c.again and not runs_alone then take_carefully(q, c, REVERSE) end
    else
        if most > low then c.again = take_plain(q, NORMAL, most - low, c) end
        if low > 0 and not c.again then c.again = take_plain(q, REVERSE, most, c) end
    end
    if #c.jobs == 0 and c.due_by and c.due_by > q.now and not c.again then take_early(q, c) end
    if #c.jobs > 0 then begin(q, c, rows) end
    if c.limited then
        for name in pairs(c.touched) do call_again(q, name) end
    end
    c.got = #c.jobs
end
