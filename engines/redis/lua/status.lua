-- What the status of a queue is made from.

local function oldest_running(q)
    local best
    local numbers = call('ZRANGE', q.k[RUN], 0, 9999)
    for _, n in ipairs(numbers) do
        local j = load_part(q, tonumber(n))
        if j and (not best or j.since < best.since or j.since == best.since and j.place < best.place) then best = j end
    end
    return call('ZCARD', q.k[RUN]), best and load(q, best.n)
end

-- The first ready job of each priority, and of each line, for up to 64 of them.
local function first_ones(q)
    local jobs = {}
    for prio = 0, 3 do
        local j = ready_of(q, prio, nil, nil, 16)[1]
        if j then jobs[#jobs + 1] = j end
    end
    for _, letter in ipairs({ 'k', 't' }) do
        for _, name in ipairs(names_of_lines(q, letter, 64)) do
            for prio = 0, 3 do
                local member = heads(q, name, prio, 1)[1]
                local j = member and load(q, select(2, parsed(entry_in(member))))
                if j then jobs[#jobs + 1] = j end
            end
        end
    end
    table.sort(jobs, function(a, b)
        local one, other = max(a.since, a.at), max(b.since, b.at)
        if one ~= other then return one < other end
        return a.place < b.place
    end)
    return jobs
end

-- wl_who_runs: one row: the number of running jobs, the id of the one that has run longest, and for
-- how long.
define('wl_who_runs', { 'no-writes' }, function(q)
    local running, j = oldest_running(q)
    return { { running, j and id_of(j) or false, j and q.now - max(j.since, 0) or nil } }
end)

-- wl_waits_since: since when the job has waited that a claim takes next, or when the first one
-- becomes due; nil: none is.
define('wl_waits_since', { 'no-writes' }, function(q)
    local j = first_ones(q)[1]
    return j and max(j.since, j.at) or first_score(q, DUE, q.now) or false
end)

-- The limit that holds the most jobs, of up to 64 of each sort, and how many.
local function longest_line(q)
    local best, most = nil, 0
    for _, letter in ipairs({ 'k', 't' }) do
        for _, name in ipairs(names_of_lines(q, letter, 64)) do
            local line_ = line_of(name)
            local length = call('ZLEXCOUNT', q.k[HELD], '[' .. line_, '(' .. line_ .. '\255')
            if length > most then best, most = name, length end
        end
    end
    return best, most
end

-- wl_limits_used: the limits that are set, and those of keys with jobs that run or are held, for up
-- to 64 keys of each. Answers rows: name, at_once, rate_count, rate_per_ns, rate_burst, running,
-- tokens (a text), held.
define('wl_limits_used', { 'no-writes' }, function(q)
    if not q.o.limited then return {} end
    local names, keys, rows = {}, 0, {}
    for name in pairs(q.o.limits) do
        if name:byte() == 107 then keys = keys + 1 end
        if name:byte() ~= 107 or keys <= 64 then names[name] = true end
    end
    for _, letter in ipairs({ 'k', 't' }) do
        for _, name in ipairs(names_of_lines(q, letter, 64)) do names[name] = true end
    end
    keys = 0
    for _, n in ipairs(call('ZRANGE', q.k[RUN], 0, 1023)) do
        local j = load(q, tonumber(n))
        if j and j.key and not names['k' .. j.key] and keys < 64 then names['k' .. j.key], keys = true, keys + 1 end
    end
    for name in pairs(names) do
        local limit = bounds_of(q, name)
        if limit then
            local line_ = line_of(name)
            local tokens = limit.count and name ~= 'e' and format('%.17g', bucket_of(q, name,
                limit) / limit.unit)
            rows[#rows + 1] = { name, limit.at_once or false, limit.count or false, limit.per and min(limit.per,
                2 ^ 62) or false,
                limit.burst or false, name == 'e' and 0 or taken_of(q, name), tokens or false,
                call('ZLEXCOUNT', q.k[HELD], '[' .. line_, '(' .. line_ .. '\255') }
        end
    end
    table.sort(rows, function(a, b)
        if (a[1] == 'q') ~= (b[1] == 'q') then return a[1] == 'q' end
        return a[1] < b[1]
    end)
    return rows
end)

-- The workers that have, or reserve, a job that runs alone: whether it runs, unless another worker
-- goes on.
local function alone_is(q)
    local has, some, runs = {}, false, false
    local function add(j, is_running)
        if j and j.suspect and (is_running or j.alone and j.alone > q.now) then
            has[j.worker or ''], some, runs = true, true, runs or is_running
        end
    end
    for _, n in ipairs(call('ZRANGE', q.k[RUN], 0, 9999)) do add(load_part(q, tonumber(n)), true) end
    local line_ = line_of('s')
    for _, member in ipairs(call('ZRANGEBYLEX', q.k[HELD], '[' .. line_, '(' .. line_ .. '\255', 'LIMIT', 0, 64)) do
        add(load(q, select(2, parsed(entry_in(member)))), false)
    end
    if not some or some_worker(q, function(w) return not has[w.name] end) then return nil end
    return runs
end

-- The running jobs whose leases have expired, since when, and the longest of the usual runs of the
-- kinds of the others.
local function how_they_run(q)
    local lapsed, at, usual = 0, nil, nil
    for _, n in ipairs(call('ZRANGE', q.k[RUN], 0, 9999)) do
        local j = load(q, tonumber(n))
        if j and j.at <= q.now then
            lapsed, at = lapsed + 1, min(at or j.at, j.at)
        elseif j then
            local average = call('HGET', q.k[SEEN], 'a' .. j.kind)
            if average then usual = max(usual or 0, tonumber(average:match('^%d+ (%d+)'))) end
        end
    end
    return lapsed, at, usual
end

-- wl_status_inputs: what the status of a queue is made from, as JSON. Arguments: worker (text).
define('wl_status_inputs', { 'no-writes' }, function(q)
    local worker, now, r = text(q), q.now, q.r
    local p, n = peek(q, worker), counts_of(q)
    local first, running, oldest = first_ones(q)[1], oldest_running(q)
    local held_by, held = longest_line(q)
    local all, lapsed, lapsed_at, usual = q.o.limits.q, how_they_run(q)
    n.at = now
    local s = { now = now, counts = n, damaged = 0, only_held = not (p.ready or p.place or false), due = p.due,
        full = p.full or false, alone = alone_is(q),
        held_by = held_by, held = held, lapsed = lapsed, lapsed_for = lapsed > 0 and now - max(lapsed_at, 0) or nil,
            usual = usual,
        lease = q.o.lease, running = running, ids_lost = rare(q, 'lost') == 1 or nil }
    if r[PAUSED] > now then s.paused_until = r[PAUSED] < 2 ^ 62 and r[PAUSED] or nil end
    if first then s.oldest_ready, s.oldest_ready_since = id_of(first), max(first.since, first.at) end
    if oldest then s.oldest_running, s.oldest_running_ran = id_of(oldest), now - max(oldest.since, 0) end
    if all and all.count and (not all.at_once or running < all.at_once) then s.full_until = p.next end
    local back_at = rare(q, 'back_at')
    if back_at > 0 then s.set_back_by, s.set_back_for = rare(q, 'back_by'), now - back_at end
    local limit = held_by and bounds_of(q, held_by)
    if limit and limit.count then
        local member
        for prio = 0, 3 do member = member or heads(q, held_by, prio, 1)[1] end
        local j = member and load(q, select(2, parsed(entry_in(member))))
        local at = j and tokens_at(q, held_by, limit, j.cost or 1)
        if at and at > now then s.held_until = at end
    end
    local lines
    for _, name in ipairs(names_of_lines(q, 'o', 64)) do
        local line_, length = line_of(name), 0
        for _, member in ipairs(call('ZRANGEBYLEX', q.k[HELD], '[' .. line_, '(' .. line_ .. '\255', 'LIMIT', 0,
            160)) do
            length = length + #entries_in(member)
        end
        lines = lines or {}
        lines[name:sub(2)] = length
    end
    s.lines = lines
    -- (A number of more digits would be written as a fraction of a power of ten.)
    for name, value in pairs(s) do
        if type(value) == 'number' then s[name] = min(value, 10 ^ 14 - 1) end
    end
    local value = cjson.encode(s)
    -- (The largest number there is has more digits than a number of Lua.)
    return r[PAUSED] >= 2 ^ 62 and value:gsub('^{', '{"paused_until":' .. ENDLESS .. ',', 1) or value
end)

-- wl_told: the changes behind a number. Arguments: for (ms: how long changes are kept from now on),
-- behind (empty: it begins to watch). Each call with changes rings on the channel `told`. Answers
-- rows: heard: number: of the last change; more: number: of those that are no longer kept; and
-- `told` or `paused` of each, in order.
define('wl_told', { 'allow-oom' }, function(q)
    local time, behind, r = min(number(q) or 0, 60000), number(q), q.r
    local last, rows, missed = rare(q, 'told'), {}, 0
    -- Until now nothing was kept, so this number stands for what has happened.
    if r[WATCHED] <= q.real then last = call('HINCRBY', q.k[HEAD], 'told', 1) end
    if r[WATCHED] < q.real + time / 2 then r[WATCHED] = q.real + time end
    rows[1] = { 'heard', last }
    if not behind then return rows end
    local from = max(behind, last - 4096)
    missed = from - behind
    -- After a failover the server may know less than the caller.
    if behind > last then from, missed = last, 1 end
    while from < last do
        local fields = {}
        for at = 1, min(last - from, 1000) do fields[at] = 'c' .. (from + at) % 4096 end
        for at, value in ipairs(call('HMGET', q.k[SHOWN], unpack(fields))) do
            local n, state, of = (value or ''):match('^(%d+) (%l+) (.*)$')
            if tonumber(n) ~= from + at then missed = missed + 1
            elseif state == 'paused' then rows[#rows + 1] = { 'paused', tonumber(of) >= 2 ^ 62 and ENDLESS or tonumber(of) }
            else rows[#rows + 1] = { 'told', false, of, false, state ~= 'gone' and state or nil } end
        end
        from = from + #fields
    end
    if missed > 0 then rows[#rows + 1] = { 'more', missed } end
    return rows
end)
