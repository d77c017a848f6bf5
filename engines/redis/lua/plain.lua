-- The common claim: it takes what is at the head of the lanes, and begins it.

local needless, more_of, begin, take_plain, hold_at, NORMAL, REVERSE

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
    if not j.rich and not j.side and not j.resub then return j.key and '{"key":' .. quoted(j.key) .. '}' or nil end
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
-- The state of a job that had none before, up to its token; and of one that has a place of its key.
local FIRST = ' ' .. ('\0'):rep(6)
local PLAIN, KEYED = 'x' .. FIRST, 'x(' .. FIRST:sub(2)

-- Begins the jobs of a claim, which have left their places: their rows `claimed`. Those that do not
-- fit into 8 MB have no payload. c.jobs: jobs; or, if c.texts has the number of one, its row, and
-- c.keyed says if it takes a place of its key.
function begin(q, c, rows)
    local k, now, room, r, jobs, texts, worker = q.k, q.now, 8388608, q.r, c.jobs, c.texts, c.worker
    local until_, states, times = now + (c.lease or q.o.lease), {}, {}
    local until_text = whole(until_)
    -- The end of the state of all jobs that had none before.
    local tail = pack('>I7I7B', now, until_, worker and #worker or 0) .. (worker or '')
    local is_watched, limited = r[WATCHED] > q.real, q.o.limited
    for at = 1, #jobs do
        local j, n, token = jobs[at], texts[at], next_number(q)
        if n then
            if is_watched then note_change(q, '~' .. n, 'running') end
            room = room - #j[8]
            if room < 0 and at > 1 then j[8] = false end
            j[6], j[10], j[11], rows[#rows + 1] = token, now, at * 4 + j[11], j
            states[2 * at - 1], states[2 * at] = n, (c.keyed and c.keyed[at] and KEYED or PLAIN) .. pack('>I7', token) .. tail
        else
            n = whole(j.n)
            if is_watched then note_change(q, id_of(j), 'running') end
            if j.exp and not j.taken then call('ZREM', k[EXPIRES], n) end
            if j.till == 'c' then release(q, j) end
            if j.side then j.data = call('HGET', k[DATA], n) or nil end
            room = room - #j.payload - (j.data and #j.data or 0)
            local fits = room >= 0 or at == 1
            j.state, j.place, j.since, j.at, j.worker, j.taken, j.alone, j.held = 'x', token, now, until_, worker,
                true, nil, nil
            if j.resub and j.resub <= now then j.resub, j.resubd = nil, nil end
            if limited then take_places(q, j) end
            states[2 * at - 1] = n
            states[2 * at] = j.has_state and state_value(j) or 'x' .. string.char(32 + (j.kcount and 8 or 0)
                + (j.tcount and 16 or 0) + (j.rich and 64 or 0)) .. FIRST:sub(2) .. pack('>I7', token) .. tail
            rows[#rows + 1] = { 'claimed', j.n, j.id or false, false, false, token, j.kind, fits and j.payload,
                j.pushed, now, at * 4 + j.prio, more_of(q, j) or false, fits and j.data or false,
                fits and j.err or false, j.fail > 0 and j.fail, j.crash > 0 and j.crash, j.due }
        end
        times[2 * at - 1], times[2 * at] = until_text, n
    end
    if #jobs == 1 then
        call('HSET', k[STATE], states[1], states[2])
        call('ZADD', k[RUN], until_text, states[1])
    else
        call('HSET', k[STATE], unpack(states))
        call('ZADD', k[RUN], unpack(times))
    end
    r[CLAIMS] = r[CLAIMS] + #jobs
end

-- Whether a job that has left its lane may run now. Otherwise its key holds it, or it has ended.
local function takes(q, c, j)
    local full = full_limit(q, j, nil, c.awaited)
    if full then
        hold_at(q, j, full)
        return false
    end
    local err, skipped = needless(q, j)
    if err or skipped then
        end_unrun(q, j, err, skipped)
        return false
    end
    take_places(q, j)
    return true
end

-- A job without settings, or with nothing but a key, that has never moved: its row, and its key.
local function row_of_plain(value, n)
    local first = value:byte() or 4
    if first > 3 and first < 8 or #value < 9 + (value:byte(9) or 0) then return nil end
    local key, from = nil, nil
    if first > 7 then
        key, from = key_in(value)
        if not key then return nil end
    end
    local _, pushed, kind, behind = unstruct('>BI7Bc0', value)
    return { 'claimed', tonumber(n), false, false, false, false, kind, value:sub(from or behind), pushed, false, first % 4,
        key and '{"key":' .. quoted(key) .. '}' }, key
end

-- Takes the jobs of these entries of the lane of a priority that count and that, in a queue with
-- limits of keys, may run now. (One that has moved may have two entries that count until it runs.)
local function take_entries(q, entries, c, prio)
    local k, numbers, jobs, limits, rows, names = q.k, entries, c.jobs, c.limited and q.o.limits, {}, {}
    for at = 1, #entries do
        if #entries[at] > 16 then
            numbers = numbers == entries and { unpack(entries) } or numbers
            numbers[at] = entries[at]:sub(18)
        end
    end
    local values, states = values_of(k[JOB], numbers), values_of(k[STATE], numbers)
    for at = 1, #entries do
        local value, key = values[at], nil
        if value and not states[at] then rows[at], key = row_of_plain(value, numbers[at]) end
        if value and not rows[at] then
            local j = counted_by(q, entries[at], tonumber(numbers[at]), value, states[at])
            c.had = c.had or {}
            if j and not c.had[j.n] and not (j.moved and j.prio ~= prio) then
                rows[at], key, c.had[j.n] = j, j.key, true
            end
        end
        if key and limits then names[at] = 'k' .. key else names[at] = false end
        rows[at] = rows[at] or false
    end
    if limits then read_taken(q, names) end
    for at = 1, #entries do
        local j, name = rows[at], names[at]
        local row = j and j[1] and j or nil
        local limit = row and name and (limits[name] or limits.e)
        if limit and limit.at_once and q.used[name] >= limit.at_once then
            row, j = nil, counted_by(q, entries[at], row[2], values[at])
        end
        if row then
            local index = #jobs + 1
            jobs[index], c.texts[index] = row, numbers[at]
            if name then
                add_taken(q, name, 1)
                c.keyed[index] = true
            end
        elseif j and limits then
            if takes(q, c, j) then jobs[#jobs + 1] = j end
        elseif j then
            local err, skipped = needless(q, j)
            if err or skipped then end_unrun(q, j, err, skipped) else jobs[#jobs + 1] = j end
        end
    end
end

-- The common claim: of a queue without jobs that run alone and lines, and without limits but those
-- of keys. It takes what is at the head of the lanes, and passes by at most 256 entries (64, if
-- full keys may hold them). Returns whether there may be more behind these.
function take_plain(q, order, most, c)
    local k, looked, jobs, bound = q.k, 0, c.jobs, c.limited and 64 or 256
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
            if #entries > 0 then take_entries(q, entries, c, prio) end
            -- (Others may have waited for one that has ended, and come before those behind it.)
            if q.r[ENDINGS] > 0 then return true end
        end
    end
    return false
end

-- Claims that look at each job.
