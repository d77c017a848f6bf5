-- The common claim: it takes what is at the head of the lanes, and begins it.

local needless, more_of, begin, take_plain, NORMAL, REVERSE

-- Why a job that waits need not run: the error of one that has expired, or why it is skipped.
function needless(q, j)
    if j.exp and not j.taken and j.exp <= q.now then return 'it expired: no worker had taken it in time' end
    if j.root and (remembered(q, 'r', j.root) or -1) > j.root_at then return nil, 'superseded' end
    if j.skip and j.fail == 0 and j.crash == 0 and (remembered(q, 'e', j.fp) or -1) >= (j.sf or j.n) then
        return nil, 'executed'
    end
end

-- What only few jobs have, as JSON for the worker.
function more_of(q, j)
    if not j.rich and not j.side and not j.resub then return nil end
    local all = {}
    local function add(name, value) all[#all + 1] = '"' .. name .. '":' .. value end
    if j.key then add('key', quoted(j.key)) end
    if j.resub then add('resubmit', whole(j.resub)) end
    if j.root then
        add('root', quoted(j.root))
        add('root_at', whole(j.root_at))
    end
    if j.cost then add('cost', whole(j.cost)) end
    if j.side and call('HEXISTS', q.k[META], whole(j.n)) == 1 then add('meta', 'true') end
    if j.side and call('HEXISTS', q.k[SHOWN], whole(j.n)) == 1 then add('progress', 'true') end
    return #all > 0 and '{' .. table.concat(all, ',') .. '}' or nil
end

-- The orders of priorities, and the one that jobs have if they name none.
NORMAL, REVERSE = { 0, 1, 2, 3 }, { 3, 2, 1, 0 }
local USUAL = { 2 }
-- The failures and crashes in the state of a job that had none before.
local NEVER_ENDED = ('\0'):rep(6)

-- Begins these jobs, which have left their places: their rows `claimed`. Those that do not fit into
-- 8 MB have no payload.
function begin(q, jobs, worker, lease, rows)
    local k, now, room, r = q.k, q.now, 8388608, q.r
    local until_, states, times = now + (lease or q.o.lease), {}, {}
    local until_text = whole(until_)
    -- The end of the state of all jobs that had none before.
    local tail = pack('>I7I7B', now, until_, worker and #worker or 0) .. (worker or '')
    local is_watched, limited = r[WATCHED] > q.real, q.o.limited
    for at = 1, #jobs do
        local j, token = jobs[at], next_number(q)
        local n = j.text or whole(j.n)
        if is_watched then note_change(q, id_of(j), 'running') end
        room = room - #j.payload
        local fits = room >= 0 or at == 1
        if j.is_plain then
            states[2 * at - 1], states[2 * at] = n, 'x ' .. NEVER_ENDED .. pack('>I7', token) .. tail
            rows[#rows + 1] = { 'claimed', j.n, false, false, false, token, j.kind, fits and j.payload, false, false,
                0, 0, j.pushed, 0,
                now, at * 4 + j.prio }
        else
            if j.exp and not j.taken then call('ZREM', k[EXPIRES], n) end
            if j.till == 'c' then release(q, j) end
            if j.side then j.data = call('HGET', k[DATA], n) or nil end
            room = room - (j.data and #j.data or 0)
            j.state, j.place, j.since, j.at, j.worker, j.taken, j.alone, j.held = 'x', token, now, until_, worker,
                true, nil, nil
            if j.resub and j.resub <= now then j.resub, j.resubd = nil, nil end
            if limited then take_places(q, j) end
            states[2 * at - 1] = n
            states[2 * at] = j.has_state and state_value(j) or 'x' .. string.char(32 + (j.kcount and 8 or 0)
                + (j.tcount and 16 or 0) + (j.rich and 64 or 0)) .. NEVER_ENDED .. pack('>I7', token) .. tail
            rows[#rows + 1] = { 'claimed', j.n, fits and j.id or false, false, false, token, j.kind, fits and j.payload,
                fits and j.data or false, fits and j.err or false, j.fail, j.crash, j.pushed, j.due or 0, now,
                    at * 4 + j.prio,
                fits and more_of(q, j) or nil }
        end
        times[2 * at - 1], times[2 * at] = until_text, n
    end
    call('HSET', k[STATE], unpack(states))
    call('ZADD', k[RUN], unpack(times))
    r[CLAIMS] = r[CLAIMS] + #jobs
end

-- Takes the jobs of these entries of a lane that count, and that `c.takes` takes, if it is there.
local function take_entries(q, entries, c)
    local k, numbers, jobs = q.k, {}, c.takes and {} or c.jobs
    for at = 1, #entries do
        local entry = entries[at]
        numbers[at] = #entry > 16 and entry:sub(18) or entry
    end
    local values, states = values_of(k[JOB], numbers), values_of(k[STATE], numbers)
    for at = 1, #entries do
        local value, state, n = values[at], states[at], tonumber(numbers[at])
        local first = value and value:byte()
        if first and first < 4 and not state and #value >= 9 + (value:byte(9) or 0) then
            -- A job without settings that has never moved.
            local _, pushed, length = unstruct('>BI7B', value)
            jobs[#jobs + 1] = { n = n, prio = first, pushed = pushed, kind = value:sub(10, 9 + length),
                payload = value:sub(10 + length),
                is_plain = true, text = numbers[at] }
        elseif value then
            local j = counted_by(q, entries[at], n, value, state)
            if j and (j.exp or j.root or j.skip) and not c.takes then
                local err, skipped = needless(q, j)
                if err or skipped then
                    end_unrun(q, j, err, skipped)
                    j = nil
                end
            end
            jobs[#jobs + 1] = j
        end
    end
    if not c.takes then return end
    if #jobs > 1 then read_taken(q, jobs) end
    for _, j in ipairs(jobs) do
        if j.is_plain or c.takes(q, c, j) then c.jobs[#c.jobs + 1] = j end
    end
end

-- The common claim: of a queue without jobs that run alone and lines, and without limits but those
-- of keys. It takes what is at the head of the lanes, and passes by at most 256 entries (64, if
-- full keys may hold them). Returns whether there may be more behind these.
function take_plain(q, order, most, c)
    local k, looked, jobs, bound = q.k, 0, c.jobs, c.takes and 64 or 256
    if q.r[LANES] == 4 then order = USUAL end
    for at = 1, #order do
        local prio = order[at]
        while #jobs < most and may_have(q.r, prio) do
            if looked >= bound then return true end
            local wanted = min(most - #jobs, bound - looked)
            local entries
            if wanted == 1 then
                entries = { call('LPOP', k[LANE + prio]) or nil }
            else
                entries = call('LPOP', k[LANE + prio], whole(wanted)) or {}
            end
            if #entries < wanted then note_empty(q.r, prio) end
            looked = looked + #entries
            if #entries > 0 then take_entries(q, entries, c) end
            -- (Others may have waited for one that has ended, and come before those behind it.)
            if q.r[ENDINGS] > 0 then return true end
        end
    end
    return false
end

-- Claims that look at each job.
