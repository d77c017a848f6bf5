-- Reads. None of them writes, and none reads more in a longer queue.

local ready_of, counts_of

-- A job as it is shown: a row of `wl_get` and `wl_list`.
local function row_of(q, j)
    local now, k, n = q.now, q.k, whole(j.n)
    local data, meta, fraction, noted, note
    if j.side then
        data, meta = call('HGET', k[DATA], n), call('HGET', k[META], n)
        fraction, noted, note = progress_of(q, n)
    end
    local ended, endless = not is_live(j), j.at >= EVER
    local since = (j.state == 'r' or j.state == 'h') and j.at <= now and max(j.since, j.at) or j.since
    local place, tie = j.at, j.place
    if j.state == 'x' then place, tie = j.place, 0 elseif ended then place, tie = endless and ENDLESS or j.at, j.n end
    return { name_of(q), j.n, j.id or false, id_of(j), shown_state(j, now), j.prio, place, tie, j.kind, j.payload,
        data or false,
        meta or false, j.key or false, j.fail, j.crash, j.pushed, j.due or 0, since, j.resub or false, j.err or false,
        fraction and format('%.17g', fraction) or false, note or false, noted or false, j.root or false,
            j.root_at or false,
        j.root and (j.is_root and 1 or 0) or false, not j.taken and j.exp or false, j.cost or 1, j.state == 'h'
            and j.held or false,
        j.pend or 0, not ended and j.suspect and 1 or 0, j.skipped or false, ended and not endless and j.at or false,
        not ended and j.worker or false, j.state == 'x' and j.place or false }
end

-- wl_get: a job, or no row. Arguments: id. The columns of its row: queue, number, name, id, state,
-- priority, place, tie, kind, payload, data, meta, key, failures, crashes, pushed, due, since,
-- resubmit, error, fraction (a text), note, noted, root, root_at, is_root, expires, cost, held_by,
-- pending, suspect, skipped, gone_at, worker, token. A flag is 1 or 0.
define('wl_get', { 'no-writes' }, function(q)
    local j = find(q, arg(q))
    return j and { row_of(q, j) } or {}
end)

-- The first index from which on an ordered list is behind a place. `get` answers the time and the
-- place at an index; nil: it is not known, since that entry is stale.
local function first_behind(length, get, at, place)
    local low, high = 0, length
    while low < high do
        local middle = floor((low + high) / 2)
        local probe, time, own = middle, nil, nil
        while probe < high and probe < middle + 64 do
            time, own = get(probe)
            if time then break end
            probe = probe + 1
        end
        if time and (time > at or time == at and own > place) then high = middle
        elseif time then low = probe + 1
        elseif probe >= high then high = middle
        else low = probe end
    end
    return low
end

-- Adds jobs of this priority whose entries count, and are behind a place.
local function add_entries(q, jobs, entries, prio, at, place)
    for _, entry in ipairs(entries) do
        local _, n = parsed(entry)
        local j = load(q, n)
        if j and j.state == 'r' and entry_of(j) == entry and j.at <= q.now and j.prio == prio
            and (not at or j.at > at or j.at == at and j.place > place) then
            jobs[#jobs + 1] = j
        end
    end
end

local function in_order(jobs)
    table.sort(jobs, function(a, b)
        if a.at ~= b.at then return a.at < b.at end
        if a.place ~= b.place then return a.place < b.place end
        return a.n < b.n
    end)
    -- (One that was moved back with the clock may be there twice.)
    local all = {}
    for _, j in ipairs(jobs) do
        if #all == 0 or all[#all].n ~= j.n then all[#all + 1] = j end
    end
    return all
end

-- The ready jobs of one priority that no limit holds, in order.
function ready_of(q, prio, at, place, most)
    local k, jobs = q.k, {}
    local lane = k[LANE + prio]
    local from = 0
    if at then
        from = first_behind(call('LLEN', lane), function(index)
            local entry = call('LINDEX', lane, index)
            local j = load(q, select(2, parsed(entry)))
            if not j or entry_of(j) ~= entry or j.state ~= 'r' then return nil end
            return j.at, j.place
        end, at, place)
    end
    -- (Stale entries are passed by, up to a bound.)
    for _ = 1, 256 do
        local entries = call('LRANGE', lane, from, from + max(most, 64) - 1)
        add_entries(q, jobs, entries, prio, at, place)
        from = from + #entries
        if #entries < max(most, 64) or #jobs >= most then break end
    end
    local names = names_of_lines(q, 'o', 256)
    for _, name in ipairs(names) do
        local line_ = line_of(name) .. prio
        local start = '[' .. line_
        -- A member begins with its first job. Behind a clock that was set back, others may begin before
        -- its last job.
        if at then
            local from, last = '[' .. line_ .. format('%017d', at) .. whole(place) .. '\255', {}
            for n = 1, 64 do
                local before = call('ZREVRANGEBYLEX', k[HELD], from, start, 'LIMIT', 0, 1)[1]
                if not before then break end
                from = '(' .. before
                local entries = entries_in(before)
                add_entries(q, last, { entries[#entries] }, prio)
                local j = last[#last]
                if n == 64 or j and (j.at < at or j.at == at and j.place <= place) then
                    start = '[' .. before
                    break
                end
            end
        end
        local found, bound = {}, nil
        while true do
            local members, is_over = call('ZRANGEBYLEX', k[HELD], start, '(' .. line_ .. '\255', 'LIMIT', 0, 16), false
            for _, member in ipairs(members) do
                local time = tonumber(member:sub(#line_ + 1, #line_ + 17))
                is_over = bound and (time > bound.at
                    or time == bound.at and tonumber(member:sub(#line_ + 18, #line_ + 33)) > bound.place)
                if is_over then break end
                add_entries(q, found, entries_in(member), prio, at, place)
                if #found >= most then
                    found = in_order(found)
                    bound = found[most]
                end
            end
            if is_over or #members < 16 then break end
            start = '(' .. members[16]
        end
        for _, j in ipairs(found) do jobs[#jobs + 1] = j end
    end
    if q.r[SUSPECTS] > 0 then
        local line_ = line_of('s') .. prio
        local entries = call('ZRANGEBYLEX', k[HELD], '[' .. line_, '(' .. line_ .. '\255')
        for index = 1, #entries do entries[index] = entry_in(entries[index]) end
        add_entries(q, jobs, entries, prio, at, place)
    end
    if q.r[NEXT_DUE] <= q.now then add_entries(q, jobs, call('ZRANGEBYSCORE', k[DUE], '-inf', q.now, 'LIMIT', 0,
        4096), prio, at, place) end
    return in_order(jobs)
end

-- Members of a line behind a place: jobs.
local function held_of(q, name, prio, at, place, most)
    local line_, jobs = line_of(name), {}
    local behind = at and name:byte() ~= 116 and '(' .. line_ .. prio .. format('%017d', at) .. whole(place)
        .. '\255' or '[' .. line_
    for _, member in ipairs(call('ZRANGEBYLEX', q.k[HELD], behind, '(' .. line_ .. '\255', 'LIMIT', 0,
        name:byte() == 116 and 10000 or most)) do
        local j = load(q, select(2, parsed(entry_in(member))))
        if j then jobs[#jobs + 1] = j end
    end
    if name:byte() ~= 116 then return jobs end
    -- Its members are in the order of turns.
    local after = {}
    for _, j in ipairs(jobs) do
        if not at or j.prio > prio or j.prio == prio and (j.at > at or j.at == at and j.place > place) then
            after[#after + 1] = j
        end
    end
    table.sort(after, function(a, b)
        if a.prio ~= b.prio then return a.prio < b.prio end
        if a.at ~= b.at then return a.at < b.at end
        return a.place < b.place
    end)
    return after
end

-- The jobs of a sorted set by time behind a place: `get` reads the place of a member.
local function by_time(q, key, at, place, most, is_entry)
    local k, jobs, from = q.k[key], {}, 0
    if at then
        from = first_behind(call('ZCARD', k), function(index)
            local found = call('ZRANGE', k, index, index, 'WITHSCORES')
            local own, n = parsed(found[1])
            return tonumber(found[2]), is_entry and own or n
        end, at, place)
    end
    for _, member in ipairs(call('ZRANGE', k, from, from + most - 1)) do
        local _, n = parsed(member)
        local j = load(q, n)
        if j then jobs[#jobs + 1] = j end
    end
    return jobs
end

local function list_ready(q, held_by, prio, at, place, most)
    local jobs = {}
    local function add(more)
        for _, j in ipairs(more) do
            if #jobs < most then jobs[#jobs + 1] = j end
        end
    end
    if not held_by then
        for own = prio or 0, 3 do
            if #jobs < most then add(ready_of(q, own, own == prio and at or nil, place, most - #jobs)) end
        end
    end
    for _, letter in ipairs({ 'k', 't' }) do
        if held_by and held_by:sub(1, 1) == letter then add(held_of(q, held_by, prio or 0, at, place or 0, most)) end
        if not held_by or held_by:sub(1, 1) <= letter then
            local behind = held_by and held_by:sub(1, 1) == letter and held_by or nil
            while #jobs < most do
                local name = names_of_lines(q, letter, 1, behind)[1]
                if not name then break end
                add(held_of(q, name, 0, nil, 0, most - #jobs))
                behind = name
            end
        end
    end
    return jobs
end

-- wl_list: the jobs of a state in their order. Arguments: state, and held_by (text), priority,
-- place, tie of the last row before (or empty), most. Answers rows as those of `wl_get`.
define('wl_list', { 'no-writes' }, function(q)
    local state, held_by, prio, at, tie, most = arg(q), text(q), number(q), number(q), number(q), number(q) or 100
    local k, jobs, rows = q.k, {}, {}
    most = max(min(most, 1000), 0)
    if state == 'ready' then
        jobs = list_ready(q, held_by, prio, at, tie or -1, most)
    elseif state == 'scheduled' then
        jobs = by_time(q, DUE, max(at or 0, q.now), at and at > q.now and tie or 2 ^ 60, most, true)
    elseif state == 'running' then
        for _, n in ipairs(call('ZRANGE', k[RUN], 0, 9999)) do
            local j = load_part(q, tonumber(n))
            if j and j.place > (at or -1) then jobs[#jobs + 1] = j end
        end
        table.sort(jobs, function(a, b) return a.place < b.place end)
        for index = 1, min(#jobs, most) do jobs[index] = load(q, jobs[index].n) end
    elseif state == 'waiting' then
        local line_ = line_of('w')
        local from = at and '(' .. line_ .. prio .. format('%017d', at) .. whole(tie or 0) .. '\255' or '['
            .. line_
        for _, member in ipairs(call('ZRANGEBYLEX', k[HELD], from, '(' .. line_ .. '\255', 'LIMIT', 0, most)) do
            jobs[#jobs + 1] = load(q, select(2, parsed(entry_in(member))))
        end
    elseif state == 'finished' or state == 'dead' then
        if at and at >= 2 ^ 62 then at = math.huge end
        jobs = by_time(q, state == 'dead' and DEAD or DONE, at, tie or -1, most)
    elseif state ~= 'damaged' then
        refuse('there is no state ' .. quoted(state))
    end
    for index = 1, min(#jobs, most) do rows[index] = row_of(q, jobs[index]) end
    return rows
end)

-- The jobs in each state. All of them are known without counting.
function counts_of(q)
    local k, line_ = q.k, line_of('w')
    local n = { scheduled = call('ZCOUNT', k[DUE], '(' .. whole(q.now), '+inf'), running = call('ZCARD', k[RUN]),
        finished = call('ZCARD', k[DONE]), dead = call('ZCARD', k[DEAD]),
        waiting = call('ZLEXCOUNT', k[HELD], '[' .. line_, '(' .. line_ .. '\255') }
    n.ready = call('HLEN', k[JOB]) - n.scheduled - n.running - n.finished - n.dead - n.waiting
    return n
end

-- wl_counts: rows: state, count, age (0: the numbers are exact), of each state that has a job.
define('wl_counts', { 'no-writes' }, function(q)
    local rows, n = {}, counts_of(q)
    for _, state in ipairs({ 'scheduled', 'ready', 'running', 'finished', 'dead', 'waiting' }) do
        if n[state] > 0 then rows[#rows + 1] = { state, n[state], 0 } end
    end
    return rows
end)

-- wl_states_of: the jobs of these ids as their waiters see them. Arguments: a list of ids. Answers
-- rows of those that are there: id, state, data, error, fraction (a text), note, noted.
define('wl_states_of', { 'no-writes' }, function(q)
    local rows = {}
    for _ = 1, count(q, 10000) or 0 do
        local id = arg(q)
        local j = find(q, id)
        if j then
            local fraction, noted, note = progress_of(q, j.n)
            rows[#rows + 1] = { id, shown_state(j, q.now), call('HGET', q.k[DATA], j.n), j.err or false,
                fraction and format('%.17g', fraction) or false, note or false, noted }
        end
    end
    return rows
end)

-- wl_related_to: the jobs that a job waits for, or waited for when it died, and those that wait for
-- it. Arguments: id, most. Answers two lists of ids.
define('wl_related_to', { 'no-writes' }, function(q)
    local id, most = arg(q), min(number(q) or 100, 10000)
    local j, both = find(q, id), { {}, {} }
    if not j then return both end
    for at, key in ipairs({ AFTER, BEFORE }) do
        for _, n in ipairs(edges_of(q, key, j.n, most)) do
            local other = load(q, n)
            table.insert(both[at], other and id_of(other) or '~' .. whole(n))
        end
    end
    for _, other in ipairs(j.wf or {}) do
        if #both[1] < most then table.insert(both[1], other) end
    end
    return both
end)

-- wl_periodics_of: rows: name, last, run, skipped, schedule, next, damaged (why), in the order of
-- the names.
define('wl_periodics_of', { 'no-writes' }, function(q)
    local all, rows = call('HGETALL', q.k[TICK]), {}
    for at = 1, #all, 2 do
        local p = schedule_of(q, all[at], all[at + 1])
        rows[#rows + 1] = p and { all[at], p.last, p.run or false, p.skipped, p.schedule or false, p.every
            and p.last + p.every or p.next } or { all[at], 0, false, 0, false, false, 'its record is no schedule' }
    end
    table.sort(rows, function(a, b) return a[1] < b[1] end)
    return rows
end)
