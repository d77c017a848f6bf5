-- Pushes. Each rule of a push is here, so that every language keeps it.

local waiting_of, same, push_one, note_time, expire_some

-- Finds the jobs that a push waits for: those that have not ended, and those that have died, if the
-- job waits for such ones, or dies with one (the second result). `own` is the number of the job
-- itself, if it is there.
local function awaited_of(q, id, own, after, on_dead)
    local most, died, set = 10000, nil, {}
    if #after > most then
        refuse('a job waits for ' .. most .. ' others at most, and not for ' .. #after
            .. ': let it wait for jobs which wait for some of them each')
    end
    local left = most
    for _, other in ipairs(after) do
        if other == id then fail('WQ003', 'the job ' .. quoted(id) .. ' would wait for itself', other, id) end
        local j = find(q, other)
        if not j then
            local made = other:find('^~[1-9]%d*$') and #other < 18 and tonumber(other:sub(2)) <= q.r[LAST]
                and tonumber(other:sub(2)) > 10 ^ 15
            local gone = call('ZSCORE', q.k[FORGET], 'g' .. other)
            if not made and not (gone and tonumber(gone) >= q.now) then
                fail('WQ004', 'there is no job ' .. quoted(other:sub(1, 255)) .. ' to wait for', other:sub(1, 255))
            end
        elseif is_live(j) or j.state == 'd' and on_dead ~= 'run' then
            set[j.n] = true
            if not is_live(j) and on_dead == 'die' then
                died = died or other
            elseif own then
                -- Whether this job comes before the other one, perhaps through others.
                local seen, stack = { [j.n] = true }, { j.n }
                while #stack > 0 do
                    local n = table.remove(stack)
                    if n == own then fail('WQ003', 'the job ' .. quoted(id) .. ' would wait for itself through '
                        .. quoted(other), other, id) end
                    left = left - 1
                    if left <= 0 then
                        fail('WQ003', 'the job ' .. quoted(id)
                            .. ' is there already, and so many come before it'
                            .. ' that nobody can say if it is one of them', id)
                    end
                    for _, before in ipairs(edges_of(q, AFTER, n, left)) do
                        if not seen[before] then
                            seen[before] = true
                            stack[#stack + 1] = before
                        end
                    end
                end
            end
        end
    end
    local awaited = {}
    for n in pairs(set) do awaited[#awaited + 1] = n end
    table.sort(awaited)
    return awaited, died
end

function waiting_of(q)
    local k = q.k
    return call('HLEN', k[JOB]) - call('ZCARD', k[RUN]) - call('ZCARD', k[DONE]) - call('ZCARD', k[DEAD])
end

-- Refuses a job if too many wait, after those that have expired have ended.
local function check_room(q)
    local most = q.o.max_waiting
    if not most or waiting_of(q) < most then return end
    expire_some(q, 64)
    if waiting_of(q) >= most then
        fail('WQ005', 'the queue is full: at most ' .. whole(most) .. ' of its jobs may wait', whole(most))
    end
end

-- The job of a push, as its settings say.
local function new_job(q, kind, payload, s)
    local n, now, u = next_number(q), q.now, s.unique or {}
    local j = { n = n, place = n, state = 'r', prio = s.priority or 2, kind = kind, payload = payload, fail = 0,
        crash = 0, since = now,
        id = s.id, key = s.key, cost = s.cost ~= 1 and s.cost or nil, retry = s.retry, keep = s.retention_ms,
            pushed = s.pushed or now,
        fp = u.fingerprint or s.skip, till = TILL[u['until']], skip = s.skip and true or nil,
            dead = s.on_dead ~= 'die' and s.on_dead or nil }
    j.due = bounded(s.run_at or s.delay_ms and now + s.delay_ms)
    if j.due == 0 then j.due = nil end
    -- The time of a tick was not named by the user.
    if s.run_at and not s.pushed then j.named = true end
    if j.pushed ~= now then j.given = now end
    if s.root then
        j.root, j.root_at, j.is_root = s.root.signature, s.root.at, not s.root.leaf and true or nil
    end
    if s.expires_ms then j.exp = now + s.expires_ms end
    return j
end

-- The id of the job that is unique by this fingerprint now, or was within its time, and the job, if
-- it is there.
local function twin_of(q, fp)
    local id = mark_of(q, fp)
    if id then return id end
    local n = call('HGET', q.k[INDEX], 'u' .. fp)
    local j = n and load(q, tonumber(n))
    return j and unique_of(j) == fp and id_of(j) or nil
end

-- The mark of a job whose id another one takes.
local function remove_mark(q, old)
    if old.till == 'w' and mark_of(q, old.fp, true) == id_of(old) then put(q, 'HDEL', q.k[INDEX], 'w' .. old.fp) end
end

-- Takes the job out of its place, which another one takes.
local function displace(q, old)
    leave_line(q, old)
    if old.exp and not old.taken then put(q, 'ZREM', q.k[EXPIRES], whole(old.n)) end
    if old.pend then remove_edges(q, old.n) end
    release(q, old)
    remove_mark(q, old)
    for _, key in ipairs({ DATA, META, SHOWN }) do put(q, 'HDEL', q.k[key], whole(old.n)) end
end

-- Puts a pushed job into its place, perhaps that of an old one that waits, or of one that has
-- ended. Returns its state.
local function place_job(q, j, old, awaited, died, within, meta)
    local k = q.k
    local before = j.id and not old and find(q, j.id)
    if before then
        -- It takes the place of one that has ended, also for those that wait for that.
        if #edges_of(q, BEFORE, before.n, 1) > 0 then
            j.n, j.moved = before.n, before.moved or before.prio ~= j.prio or nil
        end
        put(q, 'ZREM', k[before.state == 'd' and DEAD or DONE], whole(before.n))
        delete_job(q, before)
        remove_mark(q, before)
    end
    if old then displace(q, old) end
    if before then tell(q, id_of(j), nil, nil, nil, 'anew') end
    j.pend = #awaited > 0 and #awaited or nil
    j.state, j.at = j.pend and 'w' or 'r', max(j.due or 0, q.now)
    -- (It is skipped for twins from its place on.)
    if j.skip and j.place ~= j.n then j.sf = j.place end
    j.due0, j.named0 = j.due, j.named
    write_job(q, j)
    if meta then
        put(q, 'HSET', k[META], whole(j.n), meta)
        j.side = true
    end
    if old or before or meta or j.state ~= 'r' or j.place ~= j.n then write_state(q, j) end
    if j.id then
        put(q, 'HSET', k[INDEX], 'n' .. j.id, whole(j.n))
        if put(q, 'ZREM', k[FORGET], 'g' .. j.id) == 1 then q.r[GONE] = q.r[GONE] - 1 end
    end
    local fp = unique_of(j)
    if fp then put(q, 'HSET', k[INDEX], 'u' .. fp, whole(j.n)) end
    if within then
        remember(q, 'w', j.fp, q.now + within, whole(q.now + within) .. ' ' .. whole(q.now) .. ' ' .. id_of(j))
    end
    if j.exp then put(q, 'ZADD', k[EXPIRES], j.exp, whole(j.n)) end
    if j.is_root and (remembered(q, 'r', j.root) or 0) <= j.root_at then
        remember(q, 'r', j.root, q.now + 2419200000, whole(q.now + 2419200000) .. ' ' .. whole(j.root_at))
    end
    if j.pend then
        add_edges(q, j.n, awaited)
        hold(q, j, 'w')
    else
        enter_line(q, j)
    end
    if died then
        tell(q, id_of(j), 'ready')
        end_unrun(q, j, died_with(died))
        return 'dead'
    end
    return shown_state(j, q.now)
end

function same(a, b)
    if #a ~= #b then return false end
    for at = 1, #a do
        if a[at] ~= b[at] then return false end
    end
    return true
end

-- The new job in the place of a twin or of the job of its id, which waits: its failures stay.
local function move(q, j, old)
    j.n, j.place, j.fail, j.crash, j.err, j.suspect = old.n, next_number(q), old.fail, old.crash, old.err, old.suspect
    j.taken, j.moved = nil, old.moved or old.prio ~= j.prio or nil
end

-- Pushes one job: its id, outcome (added, duplicate, rescheduled or resubmit) and state.
function push_one(q, kind, payload, s, after, is_bounded)
    local u = s.unique
    local clash, within = u and u.clash or 'keep', u and u['until'] == 'within' and bounded(u.within_ms) or nil
    local j = new_job(q, kind, payload, s)
    local id, old, awaited, died = id_of(j), nil, {}, nil
    local there = j.id and find(q, j.id)
    if there and is_live(there) then old = there end
    if #after > 0 then
        awaited, died = awaited_of(q, id, there and there.n, after, j.dead or 'die')
    elseif old and old.state == 'w' then
        -- It goes on waiting for those that it has waited for.
        awaited, j.dead = edges_of(q, AFTER, old.n, 10000), old.dead
    end
    local twin, moves = u and twin_of(q, j.fp), false
    if twin then
        if clash == 'keep' then return twin, 'duplicate' end
        id = twin
        old = find(q, twin)
        if old and not is_live(old) then old = nil end
        if old and clash == 'replace' and old.state ~= 'x' then
            moves = true
            if #after > 0 then
                awaited, died = awaited_of(q, id, old.n, after, j.dead or 'die')
            elseif old.state == 'w' then
                awaited, j.dead = edges_of(q, AFTER, old.n, 10000), old.dead
            else
                awaited = {}
            end
            j.id = old.id
        elseif old and clash == 'earliest' and old.state == 'r' and old.at > q.now and (j.due or 0) < (old.due
            or 0) then
            leave_line(q, old)
            old.due, old.named, old.at, old.since, old.place = j.due, j.named, max(j.due or 0, q.now), q.now,
                next_number(q)
            write_state(q, old)
            enter_line(q, old)
            return id, 'rescheduled', shown_state(old, q.now)
        else
            return id, 'duplicate'
        end
    elseif old and old.state == 'x' then
        if #awaited > 0 or died then fail('WQ006', 'the job ' .. quoted(id)
            .. ' is running, so it cannot wait for others', id) end
        old.resub, old.resubd = j.due or 0, not j.named and q.now or nil
        write_state(q, old)
        return id, 'resubmit'
    elseif old then
        if (old.due or 0) == (j.due or 0) and not died and (#after == 0
            or same(awaited, edges_of(q, AFTER, old.n, 10001)) and (#awaited == 0 or old.dead == j.dead)) then
            return id, 'duplicate'
        end
        moves = true
    end
    if not moves and is_bounded then check_room(q) end
    if moves then
        move(q, j, old)
        if call('HEXISTS', q.k[SHOWN], whole(old.n)) == 1 then tell(q, id, nil, nil, nil, 'anew') end
    end
    local state = place_job(q, j, moves and old or nil, awaited, died, within, s.meta)
    return id_of(j), moves and 'rescheduled' or 'added', state
end

-- The common case: jobs without settings. Returns their numbers.
local function push_plain(q, jobs)
    local k, numbers, values, is_watched = q.k, {}, {}, q.r[WATCHED] > q.real
    for at = 1, #jobs do
        local job, n = jobs[at], whole(next_number(q))
        numbers[at] = n
        if is_watched then note_change(q, '~' .. n, 'ready') end
        values[2 * at - 1], values[2 * at] = n, pack('>BI7B', 2, q.now, #job[1]) .. job[1] .. job[2]
    end
    for from = 1, #jobs, 1000 do
        local to = min(from + 999, #jobs)
        call('HSET', k[JOB], unpack(values, 2 * from - 1, 2 * to))
        if q.r[NEXT_DUE] > q.now then
            call('RPUSH', k[LANE + 2], unpack(numbers, from, to))
            note_lane(q.r, 2)
        else
            -- Jobs that are due come first: it waits behind them.
            for at = from, to do call('ZADD', k[DUE], q.now, numbers[at]) end
        end
    end
    q.ready = q.ready + #jobs
    return numbers
end

local function read_jobs(q, of)
    local length = count(q, 10000) or 0
    local jobs, is_plain = {}, true
    for at = 1, length do
        local kind, payload, settings = arg(q), arg(q), arg(q)
        check_job(of, kind, payload)
        jobs[at] = { kind, payload, settings ~= '' and settings or nil }
        is_plain = is_plain and settings == ''
    end
    return jobs, is_plain
end

function note_time(q)
    if q.r[LATEST_SEEN] < q.now - 1000 then q.r[LATEST_SEEN] = q.now end
end

-- Pushes jobs, all or none. With `batch`, the last one waits for all others.
local function push_jobs(q, jobs, is_plain, batch)
    note_time(q)
    move_due(q)
    local rows, ids = {}, {}
    if is_plain and not q.o.max_waiting and not batch then
        for at, n in ipairs(push_plain(q, jobs)) do rows[at] = { 'pushed', false, '~' .. n, 'added', 'ready' } end
        return add_told(q, rows)
    end
    local all = {}
    for at, job in ipairs(jobs) do all[at] = job[3] and settings_of(job[3]) or {} end
    for at, job in ipairs(jobs) do
        local after = all[at].after or {}
        if batch and at == #jobs then
            for _, id in ipairs(ids) do after[#after + 1] = id end
        end
        local id, outcome, state = push_one(q, job[1], job[2], all[at], after, true)
        if state and state ~= 'dead' then note_change(q, id, state) end
        ids[at], rows[at] = id, { 'pushed', false, id, outcome, state }
    end
    return add_told(q, rows)
end

-- wl_push: pushes jobs, all or none. Arguments: batch (flag: the last one waits for all others),
-- and a list of {kind, payload, settings (JSON, or empty)}: 10,000 at most. Answers a row `pushed`
-- for each, in order: id, state; outcome.
define('wl_push', {}, function(q)
    local batch = flag(q)
    local jobs, is_plain = read_jobs(q, q)
    q.log = (#jobs > 1 and not is_plain or batch or q.o.max_waiting and #jobs > 1) and {} or false
    return push_jobs(q, jobs, is_plain, batch)
end)

-- wl_push_plain: jobs without settings. Arguments: a list of {kind, payload}. Answers their
-- numbers, or nil, if only `wl_push` can say whether there is room.
define('wl_push_plain', {}, function(q)
    local most, r = q.o.max_payload, q.r
    if q.o.max_waiting then return false end
    local jobs = {}
    for at = 1, count(q, 10000) or 0 do
        local kind, payload = arg(q), arg(q)
        if #kind < 1 or #kind > 255 or #payload > most then check_job(q, kind, payload) end
        jobs[at] = { kind, payload }
    end
    if r[LATEST_SEEN] < q.now - 1000 then r[LATEST_SEEN] = q.now end
    if r[NEXT_DUE] <= q.now then move_due(q) end
    local numbers = push_plain(q, jobs)
    for at = 1, #numbers do numbers[at] = tonumber(numbers[at]) end
    return numbers
end)

-- wl_push_across: pushes into several queues, all or none; the keys of each follow each other.
-- Arguments: for each queue those of `wl_push`. After the rows of each queue is a row `next`. An
-- error names its queue.
define('wl_push_across', {}, function(first, queues)
    local rows, all, total = {}, {}, 0
    for at, q in ipairs(queues) do
        queues.fault = q
        local batch = flag(first)
        local jobs, is_plain = read_jobs(first, q)
        total = total + #jobs
        all[at] = { jobs, is_plain, batch }
        q.log = {}
    end
    queues.fault = first
    if total > 10000 then refuse('a call pushes 10,000 jobs at most, and not ' .. total) end
    for at, q in ipairs(queues) do
        queues.fault = q
        for _, row in ipairs(push_jobs(q, all[at][1], false, all[at][3])) do rows[#rows + 1] = row end
        rows[#rows + 1] = { 'next' }
    end
    return rows
end, true)
