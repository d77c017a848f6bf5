-- Calls of operators and of workers for single jobs.

-- Removes a job in any state. Its worker learns so at its next call.
local function remove_one(q, j)
    local k, n = q.k, whole(j.n)
    if is_live(j) then
        if j.state == 'x' then
            call('ZREM', k[RUN], n)
            leave_places(q, j)
        else
            leave_line(q, j)
        end
        if j.exp then call('ZREM', k[EXPIRES], n) end
        if j.pend then remove_edges(q, j.n) end
        release(q, j)
        set_suspect(q, j, false)
    else
        call('ZREM', k[j.state == 'd' and DEAD or DONE], n)
    end
    if j.fp and mark_of(q, j.fp) == id_of(j) then call('HDEL', k[INDEX], 'w' .. j.fp) end
    end_edges(q, j.n, false)
    delete_job(q, j)
    forget(q, j.id)
    tell(q, id_of(j), nil)
    return true
end

-- The jobs of these ids that live, and do not wait for this dead one, not even through others.
local function living_of(q, ids, n)
    local living, behind, stack = {}, { [n] = true }, { n }
    local found = 0
    while #stack > 0 do
        for _, waiter in ipairs(edges_of(q, BEFORE, table.remove(stack), 10000)) do
            if not behind[waiter] then
                behind[waiter], found = true, found + 1
                stack[#stack + 1] = waiter
            end
        end
        -- Where it is not known whether two would wait for each other, this one does not wait.
        if found >= 10000 then return {} end
    end
    for _, id in ipairs(ids) do
        local j = find(q, id)
        if j and is_live(j) and not behind[j.n] then living[#living + 1] = j.n end
    end
    table.sort(living)
    return living
end

-- Makes a dead job ready, with no failures and no crashes. If it still waited for others when it
-- died, it waits for those of them that live.
local function requeue_one(q, j)
    if j.state ~= 'd' then return false end
    local k, id = q.k, id_of(j)
    local awaited = j.wf and living_of(q, j.wf, j.n) or {}
    call('ZREM', k[DEAD], whole(j.n))
    if call('HDEL', k[SHOWN], whole(j.n)) == 1 then tell(q, id, nil, nil, nil, 'anew') end
    j.place, j.fail, j.crash, j.due, j.named, j.since, j.at = next_number(q), 0, 0, nil, nil, q.now, q.now
    -- (It is as one that was claimed: it expires no more, and it is unique only until its end.)
    j.wf, j.resub, j.resubd, j.skipped, j.pend, j.worker = nil, nil, nil, nil, #awaited > 0 and #awaited or nil, nil
    j.state = j.pend and 'w' or 'r'
    if j.skip then j.sf = j.place end
    local was_taken = j.taken
    if j.exp then
        j.exp, j.taken = nil, nil
        write_job(q, j)
    end
    j.taken = was_taken
    -- It is unique again, unless it has a twin by now.
    local fp = unique_of(j)
    if fp and (call('HEXISTS', k[INDEX], 'u' .. fp) == 1 or mark_of(q, fp)) then j.alike, fp = true, nil end
    if fp then call('HSET', k[INDEX], 'u' .. fp, whole(j.n)) end
    write_state(q, j)
    if j.pend then
        add_edges(q, j.n, awaited)
        hold(q, j, 'w')
    else
        enter_line(q, j)
    end
    tell(q, id, j.pend and 'waiting' or 'ready')
    return true
end

-- Requeues some dead jobs, each one after those that it waited for.
local function requeue_some(q, most)
    local seen, count_ = {}, 0
    for _, seed in ipairs(call('ZRANGE', q.k[DEAD], 0, most - 1)) do
        local stack = { { tonumber(seed), false } }
        while #stack > 0 and count_ < most do
            local top = table.remove(stack)
            local j = load(q, top[1])
            if j and j.state == 'd' then
                if top[2] or not j.wf then
                    if requeue_one(q, j) then count_ = count_ + 1 end
                elseif not seen[j.n] then
                    seen[j.n] = true
                    stack[#stack + 1] = { j.n, true }
                    for at = #j.wf, 1, -1 do
                        local other = find(q, j.wf[at])
                        if other and other.state == 'd' then stack[#stack + 1] = { other.n, false } end
                    end
                end
            end
        end
    end
    return count_
end

-- Makes a scheduled job due now. All else stays.
local function run_now_one(q, j)
    if j.state ~= 'r' or j.at <= q.now then return false end
    leave_line(q, j)
    j.due, j.named, j.at, j.since, j.place = nil, nil, q.now, q.now, next_number(q)
    write_state(q, j)
    enter_line(q, j)
    tell(q, id_of(j), 'ready')
    return true
end

-- Numbers of jobs of a state that are to be removed.
local function some_of(q, state, most)
    local k, numbers = q.k, {}
    local function add_entries(entries, checks)
        for _, entry in ipairs(entries) do
            local _, n = parsed(entry)
            local j = #numbers < most and load(q, n)
            if j and (not checks or j.state == 'r' and entry_of(j) == entry and j.at <= q.now) then numbers[#numbers + 1] = n end
        end
    end
    if state == 'running' then
        for at, n in ipairs(call('ZRANGE', k[RUN], 0, most - 1)) do numbers[at] = tonumber(n) end
    elseif state == 'scheduled' then
        add_entries(call('ZRANGEBYSCORE', k[DUE], '(' .. whole(q.now), '+inf', 'LIMIT', 0, most))
    elseif state == 'waiting' then
        local line_ = line_of('w')
        for _, member in ipairs(call('ZRANGEBYLEX', k[HELD], '[' .. line_, '(' .. line_ .. '\255', 'LIMIT', 0, most)) do
            numbers[#numbers + 1] = select(2, parsed(entry_in(member)))
        end
    else
        for prio = 0, 3 do
            while #numbers < most do
                local entries = call('LPOP', k[LANE + prio], most - #numbers)
                if not entries then break end
                add_entries(entries, true)
            end
        end
        add_entries(call('ZRANGEBYSCORE', k[DUE], '-inf', q.now, 'LIMIT', 0, most))
        for _, letter in ipairs({ 'k', 't', 's', 'o' }) do
            for _, member in ipairs(call('ZRANGEBYLEX', k[HELD], '[' .. letter, '(' .. letter .. '\255', 'LIMIT', 0,
                most - #numbers)) do
                -- (Of a line of a kind all entries are read, and those of jobs that stay still
                -- count.)
                if #numbers < most then add_entries(letter == 'o' and entries_in(member) or { entry_in(member) },
                    letter == 'o' or letter == 's') end
                if letter == 'o' and #numbers < most then call('ZREM', k[HELD], member) end
            end
        end
    end
    table.sort(numbers)
    return numbers
end

local ONE = { remove = remove_one, requeue = requeue_one, run_now = run_now_one }
local PURGED = set_of('scheduled ready running waiting')

-- wl_steer: steers a queue. Arguments: what (remove, requeue, run_now; purge, requeue_dead; pause;
-- remove_periodic), id (text: of a job; a state to purge; the name of a schedule), for (ms of a
-- pause; empty: without end, 0: no more). Answers rows `told` and `line`, and `steered`: number: of
-- the jobs that were changed. A purge takes up to 128 a call.
define('wl_steer', { 'allow-oom' }, function(q)
    local what, id, time, changed, most = arg(q), text(q), number(q), 0, 128
    if (ONE[what] or what == 'remove_periodic') and not id then
        refuse(quoted(what) .. ' needs the id of a job, or the name of a schedule')
    elseif what == 'purge' and not PURGED[id or ''] then
        refuse('"purge" needs a state: scheduled, ready, running or waiting; '
            .. 'jobs that have ended are removed by their ids')
    elseif time and time < 0 then
        refuse('a pause is 0 milliseconds (it ends) or more, or empty: without end')
    end
    note_time(q)
    move_due(q)
    if ONE[what] then
        changed = ONE[what](q, required(q, id)) and 1 or 0
    elseif what == 'purge' then
        for _, n in ipairs(some_of(q, id, most)) do
            local j = load(q, n)
            if j and remove_one(q, j) then changed = changed + 1 end
        end
    elseif what == 'requeue_dead' then
        changed = requeue_some(q, most)
    elseif what == 'pause' then
        q.r[PAUSED] = not time and 2 ^ 63 or time == 0 and 0 or q.now + bounded(time)
        set_rare(q, 'paused_since', time == 0 and 0 or q.now)
        q.told[#q.told + 1] = { 'paused', q.r[PAUSED] >= 2 ^ 62 and ENDLESS or q.r[PAUSED] }
        note_change(q, whole(min(q.r[PAUSED], 2 ^ 62)), 'paused')
        q.ready, changed = q.ready + 1, 1
    elseif what == 'remove_periodic' then
        changed = call('HDEL', q.k[TICK], id)
    else
        refuse('there is no call ' .. quoted(what))
    end
    resolve(q)
    local rows = add_told(q, {})
    rows[#rows + 1] = { 'steered', changed }
    return rows
end)

-- The place of the quote that ends the text which begins at a quote.
local function text_end(object, from)
    local at = from + 1
    while true do
        local next_ = object:find('["\\]', at)
        if object:byte(next_) == 34 then return next_ end
        at = next_ + 2
    end
end

-- The members of an object as text: their keys, and the text of each value, as it is. (It is read
-- once from its begin to its end: a caller gives 64 kB of it, and all others wait.)
local function members_of(object)
    local members, at = {}, object:find('{', 1, true) + 1
    while true do
        local from, to = object:find('^%s*"', at)
        if not from then return members end
        local stop = text_end(object, to)
        local key = cjson.decode('[' .. object:sub(to, stop) .. ']')[1]
        local _, value_from = object:find('^%s*:%s*', stop + 1)
        local depth, scan, sign = 0, value_from + 1, nil
        repeat
            local next_ = object:find('["{}%[%],]', scan)
            sign = object:sub(next_, next_)
            if sign == '"' then
                next_ = text_end(object, next_)
            elseif sign == '{' or sign == '[' then
                depth = depth + 1
            elseif depth > 0 and sign ~= ',' then
                depth = depth - 1
                sign = ''
            end
            scan = next_ + 1
        until depth == 0 and (sign == ',' or sign == '}')
        local last = scan - 2
        while object:byte(last) <= 32 do last = last - 1 end
        members[#members + 1] = { key, object:sub(value_from + 1, last) }
        if sign == '}' then return members end
        at = scan
    end
end

-- An object as text with another member, its members in order; null: it has none.
local function set_member(object, key, value)
    local members = {}
    for _, member in ipairs(object and members_of(object) or {}) do
        if member[1] ~= key then members[#members + 1] = member end
    end
    if value then members[#members + 1] = { key, value } end
    table.sort(members, function(a, b) return a[1] < b[1] end)
    for at, member in ipairs(members) do members[at] = quoted(member[1]) .. ':' .. member[2] end
    return #members > 0 and '{' .. table.concat(members, ',') .. '}' or nil
end

-- Sets what is stored beside a job, and notes that there may be something.
local function set_side(q, j, key, value)
    if not value then return call('HDEL', q.k[key], whole(j.n)) end
    call('HSET', q.k[key], whole(j.n), value)
    if not j.side then
        j.side = true
        write_state(q, j)
    end
end

-- wl_edit: changes a job. Arguments: id, number, token (with it, only while the lease holds, or
-- WQ007), what (data, meta, progress, resubmit, nothing), key (text), value (text), at (a time),
-- fraction (of a progress). Answers rows: told (the caller knows the data), and `job`: number, id;
-- due: when it runs once more; since: now.
define('wl_edit', { 'allow-oom' }, function(q)
    local id, n, token, what, key, value, at, fraction = arg(q), number(q), number(q), arg(q), text(q), text(q),
        number(q), arg(q)
    local j
    if token then
        j = load(q, n or 0)
        if not j or j.state ~= 'x' or j.place ~= token then fail('WQ007', 'the lease of the job ' .. quoted(id:sub(1,
            255)) .. ' is over', id) end
    else
        j = required(q, id)
    end
    if what == 'data' then
        if value then check_size('the data of a job', value, q.o.max_payload) end
        set_side(q, j, DATA, value)
        tell(q, id, shown_state(j, q.now))
    elseif what == 'meta' then
        check_name('the key of metadata', key)
        if not key then refuse('metadata has a key') end
        if value then json_of('the value of metadata', '[' .. value .. ']') end
        local meta = set_member(call('HGET', q.k[META], whole(j.n)) or nil, key, value)
        if meta and #meta > 65536 then
            fail('WQ008', 'the metadata of the job ' .. quoted(id:sub(1, 255)) .. ' would have more than 64 kB',
                whole(#meta))
        end
        set_side(q, j, META, meta)
    elseif what == 'resubmit' then
        if is_live(j) then
            j.resub, j.resubd = at or 0, nil
            write_state(q, j)
        end
    elseif what == 'progress' then
        local part = tonumber(fraction)
        if not part or part ~= part then refuse('a progress has a fraction, which is a number from 0 to 1') end
        if is_live(j) then
            set_side(q, j, SHOWN, pack('>dd', part, q.now) .. (value or ''))
        end
    elseif what ~= 'nothing' then
        refuse('a job is changed by data, meta, progress, resubmit or nothing, and not ' .. quoted(what))
    end
    local rows = add_told(q, {})
    rows[#rows + 1] = { 'job', j.n, id, false, false, false, false, false, false, q.now, false, false, false, false,
        false, false, j.resub }
    return rows
end)

-- wl_register_periodic: registers a schedule. Arguments: name, schedule (text that is shown), every
-- (ms: this server makes its jobs; empty: the programs that have registered it do), kind, payload,
-- settings (text: JSON), at_next (flag: the first tick is not at once), next (time). Answers rows
-- told, and `periodic`: number: its last tick; id: its name; since: now.
define('wl_register_periodic', {}, function(q)
    local name, schedule, every, kind, payload, settings = arg(q), text(q), bounded(number(q)), arg(q), arg(q), text(q)
    local at_next, next_ = flag(q), number(q)
    check_name('the name of a schedule', name)
    if every and every <= 0 then refuse('a schedule has an interval of 1 millisecond or more') end
    -- A job that no push takes would hold up each tick.
    settings_of(settings or '')
    check_job(q, kind, payload)
    note_time(q)
    move_due(q)
    local old = schedule_of(q, name)
    local p = old or { last = q.now, skipped = 0 }
    p.schedule, p.next, p.every, p.kind, p.payload, p.settings = schedule, next_, every, kind, payload, settings
    if not old and not at_next then p.run = push_tick(q, p, q.now) end
    write_schedule(q, name, p)
    local rows = add_told(q, {})
    rows[#rows + 1] = { 'periodic', p.last, name, false, false, false, false, false, false, q.now }
    return rows
end)

-- wl_tick_once: makes ticks of a schedule, if its last one is still `last`: then no other program
-- has made them. Arguments: name, last, new (the last one from now on), overlaps (flag), kind,
-- payload, settings (text), next (time), and a list of the times of the jobs. Answers rows told,
-- and `ticked`: number: the last tick; id: of its job; outcome: made, skipped or other.
define('wl_tick_once', {}, function(q)
    local name, last, new, overlaps, kind, payload, settings, next_ = arg(q), number(q), number(q), flag(q), arg(q),
        arg(q), text(q), number(q)
    local ticks = {}
    for at = 1, count(q, 1000) or 0 do ticks[at] = number(q) or 0 end
    local p, outcome = schedule_of(q, name), 'other'
    if p and p.last == last then
        q.log = {}
        move_due(q)
        if not overlaps and #ticks > 0 and still_runs(q, p) then
            outcome, p.skipped = 'skipped', p.skipped + 1
        else
            outcome = 'made'
            for _, at in ipairs(ticks) do p.run = push_tick(q, { kind = kind, payload = payload,
                settings = settings }, at) end
        end
        p.last, p.next = new, next_
        write_schedule(q, name, p)
    end
    local rows = add_told(q, {})
    rows[#rows + 1] = { 'ticked', p and p.last or false, p and p.run or false, outcome }
    return rows
end)
