-- Jobs that wait for others, and how jobs end that are not run.
--
-- `after` has a member for each job and one that it waits for, `before` the same the other way
-- round. A job that others wait for leaves an ending in `before` when it ends: `!`, its turn, its
-- number, whether it died, and up to which of its waiters were told. Each call tells some of them,
-- so no call takes long, however many wait.

local edges_of, add_edges, remove_edges, end_edges, set_suspect, release, settle, end_unrun, died_with, resolve

local function pair(a, b) return whole(a) .. ':' .. whole(b) end

-- The numbers behind a number: those that it waits for (`after`), or those that wait for it
-- (`before`).
function edges_of(q, key, n, most, behind)
    local from = behind and '(' .. pair(n, behind) or '[' .. whole(n) .. ':'
    local numbers = call('ZRANGEBYLEX', q.k[key], from, '(' .. whole(n) .. ';', 'LIMIT', 0, most)
    for at = 1, #numbers do numbers[at] = tonumber(numbers[at]:sub(18)) end
    return numbers
end

function add_edges(q, n, awaited)
    q.r[EDGES] = 1
    for _, other in ipairs(awaited) do
        put(q, 'ZADD', q.k[AFTER], 0, pair(n, other))
        put(q, 'ZADD', q.k[BEFORE], 0, pair(other, n))
    end
end

function remove_edges(q, n)
    for _, other in ipairs(edges_of(q, AFTER, n, 10001)) do
        put(q, 'ZREM', q.k[AFTER], pair(n, other))
        put(q, 'ZREM', q.k[BEFORE], pair(other, n))
    end
end

local function add_ending(q, n, died, behind)
    put(q, 'ZADD', q.k[BEFORE], 0, '!' .. table.concat({ whole(next_number(q)), whole(n), died and 1 or 0,
        whole(behind or 0) }, ':'))
    q.r[ENDINGS] = q.r[ENDINGS] + 1
end

-- Notes that a job has ended for those that wait for it.
function end_edges(q, n, died)
    if q.r[EDGES] == 1 and #edges_of(q, BEFORE, n, 1) > 0 then add_ending(q, n, died) end
end

function set_suspect(q, j, suspect)
    if (j.suspect or false) ~= suspect then q.r[SUSPECTS] = q.r[SUSPECTS] + (suspect and 1 or -1) end
    j.suspect = suspect or nil
end

-- Releases the fingerprint by which a job refuses twins.
function release(q, j)
    local fp = unique_of(j)
    if fp and call('HGET', q.k[INDEX], 'u' .. fp) == whole(j.n) then put(q, 'HDEL', q.k[INDEX], 'u' .. fp) end
end

-- Puts a job, which has left its place, among those that have ended.
function settle(q, j, died, skipped)
    local k, now = q.k, q.now
    local time = died and q.o.dead_for or not died and (j.keep or q.o.keep)
    if died and j.state == 'w' then
        j.wf = {}
        for _, other in ipairs(edges_of(q, AFTER, j.n, 10000)) do
            local o = load(q, other)
            j.wf[#j.wf + 1] = o and id_of(o) or '~' .. whole(other)
        end
        table.sort(j.wf)
    end
    if j.pend then remove_edges(q, j.n) end
    end_edges(q, j.n, died)
    release(q, j)
    set_suspect(q, j, false)
    local id, data = id_of(j), j.data
    if data == nil and j.side then data = call('HGET', k[DATA], j.n) or nil end
    tell(q, id, died and 'dead' or 'finished', data, died and j.err or nil)
    if time == 0 then
        delete_job(q, j)
        forget(q, j.id)
        return nil
    end
    j.state, j.since, j.at = died and 'd' or 'f', now, time < 0 and EVER or now + min(time, LATEST)
    j.skipped, j.held, j.pend, j.silent, j.stopping, j.worker, j.alone, j.renewed = skipped, nil, nil, nil, nil, nil,
        nil, nil
    write_state(q, j)
    put(q, 'ZADD', k[died and DEAD or DONE], time < 0 and '+inf' or j.at, whole(j.n))
    return died and 'dead' or 'finished'
end

-- Puts a job that cannot be read among the dead ones. Where it was is not known, so it leaves all
-- places but the lanes and lines, whose entries count only beside its state.
function bury(q, j)
    local k, n = q.k, whole(j.n)
    local has_run = put(q, 'ZREM', k[RUN], n) == 1
    put(q, 'ZREM', k[DONE], n)
    put(q, 'ZREM', k[EXPIRES], n)
    if has_run and q.o.limited and not q.log then count_running(q) end
    if j.is_lost then write_job(q, j) end
    j.pend, j.has_state = #edges_of(q, AFTER, j.n, 1) > 0 and 1 or nil, true
    local err = j.err
    settle(q, j, true)
    line(q, 'damaged', id_of(j), j.kind, 0, err)
end

-- Ends a job that waits and is not to run: it is dead with this error, or was skipped for this
-- reason.
function end_unrun(q, j, err, skipped)
    local id = id_of(j)
    leave_line(q, j)
    if j.exp then put(q, 'ZREM', q.k[EXPIRES], whole(j.n)) end
    if not skipped then j.err = err end
    settle(q, j, not skipped, skipped)
    line(q, skipped and 'skipped' or 'died', id, j.kind, j.fail, err or skipped)
end

function died_with(id) return 'the job ' .. quoted(id) .. ' is dead, and this one was to run after it' end

-- Tells one job that another one, for which it waits, has ended.
local function tell_waiter(q, j, other, died, id)
    local dead = j.dead or 'die'
    if j.state ~= 'w' or died and dead == 'hold' then return end
    if died and dead == 'die' then return end_unrun(q, j, died_with(id)) end
    put(q, 'ZREM', q.k[AFTER], pair(j.n, other))
    put(q, 'ZREM', q.k[BEFORE], pair(other, j.n))
    if j.pend > 1 then
        j.pend = j.pend - 1
        return write_state(q, j)
    end
    leave_line(q, j)
    j.state, j.pend, j.place, j.at = 'r', nil, next_number(q), max(j.due or 0, q.now)
    if (j.due or 0) <= q.now then j.since = q.now end
    write_state(q, j)
    enter_line(q, j)
    tell(q, id_of(j), shown_state(j, q.now))
end

-- Tells the waiters of jobs that have ended: up to 1,024 in a call.
function resolve(q)
    local left, k = q.left or 1024, q.k[BEFORE]
    while q.r[ENDINGS] > 0 and left > 0 do
        local member = call('ZRANGEBYLEX', k, '[!', '("', 'LIMIT', 0, 1)[1]
        if not member then
            q.r[ENDINGS] = 0
            break
        end
        put(q, 'ZREM', k, member)
        q.r[ENDINGS], left = q.r[ENDINGS] - 1, left - 1
        local n, died, behind = member:match('^!%d+:(%d+):(%d):(%d+)$')
        n, died, behind = tonumber(n), died == '1', tonumber(behind)
        local other = load(q, n)
        -- If it lives again, its next end tells them.
        if not other or not is_live(other) then
            if other then died = other.state == 'd' end
            local most = min(64, left + 1)
            local waiters = edges_of(q, BEFORE, n, most, behind > 0 and behind or nil)
            for _, waiter in ipairs(waiters) do
                local j = load(q, waiter)
                if j then tell_waiter(q, j, n, died, other and id_of(other) or '~' .. whole(n)) end
                behind, left = waiter, left - 1
            end
            if #waiters == most then add_ending(q, n, died, behind) end
        end
    end
    q.left = left
    return q.r[ENDINGS] > 0
end
