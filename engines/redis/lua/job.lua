-- A job as it is stored, and as a table.
--
-- `job` has what the push gave, written once: the priority (and 4 with settings), when it was
-- pushed, the kind, the settings that it has, and the payload. `state` has what changes: a job that
-- waits since its push has none. So such a job costs as little memory as there is. One that has a
-- key and no other setting (8 in place of 4) costs as little to claim and to end as one without.

local state_value, job_of, write_state, write_job, load, load_part, id_of, is_live, unique_of, shown_state, find,
    required, remember, forget, mark_of, remembered, delete_job, progress_of, bury, values_of,
    places_of, key_in

-- The settings that a job may have: id, key, cost, retry; keep: its retention; fp: its fingerprint,
-- and until when it refuses twins (till: c a claim, d the end, w a time); skip: it is not run if a
-- twin has succeeded since; root, root_at, is_root; exp: when it expires; due, and whether the user
-- named that time; dead: what it does if one dies that it waits for (run, hold); given: when it was
-- pushed, if `pushed` is another time; moved: its priority was another one, so entries of it may be
-- left in another lane.
local SETTINGS = { 'id', 'key', 'cost', 'retry', 'keep', 'fp', 'till', 'skip', 'root', 'root_at', 'is_root', 'exp',
    'due', 'named', 'dead', 'given', 'moved' }
-- What few jobs have beside their state: renewed; resub, resubd: it runs once more from that time
-- on, asked for then; err; held: the limit that holds it; alone: until when its worker reserves it;
-- skipped; wf: the ids that it waited for when it died; pend: how many it waits for; sf: it is
-- skipped for twins from this number on; alike: it is no longer unique.
local RARE = { 'renewed', 'resub', 'resubd', 'err', 'held', 'alone', 'skipped', 'wf', 'pend', 'sf', 'alike', 'ndue',
    'nnamed' }

local STATES = { [114] = 'r', [104] = 'h', [119] = 'w', [120] = 'x', [102] = 'f', [100] = 'd' }
local NAMES = { h = 'ready', w = 'waiting', x = 'running', f = 'finished', d = 'dead' }

-- The value of `job`.
local function job_value(j)
    local own
    for at = 1, #SETTINGS do
        local value = j[SETTINGS[at]]
        if value ~= nil then
            own = own or {}
            own[SETTINGS[at]] = value
        end
    end
    if not own then return pack('>BI7B', j.prio, j.pushed, #j.kind) .. j.kind .. j.payload end
    if own.key and not next(own, next(own)) then
        return pack('>BI7B', j.prio + 8, j.pushed, #j.kind) .. j.kind .. pack('>B', #j.key) .. j.key .. j.payload
    end
    own, j.rich = cmsgpack.pack(own), true
    return pack('>BI7B', j.prio + 4, j.pushed, #j.kind) .. j.kind .. pack('>I4', #own) .. own .. j.payload
end

-- The value of `state`. Of a running job and one that has ended, `place` is the token of its last
-- lease.
function state_value(j)
    local flags = (j.silent and 1 or 0) + (j.stopping and 2 or 0) + (j.suspect and 4 or 0) + (j.kcount and 8
        or 0) + (j.tcount and 16 or 0)
        + (j.taken and 32 or 0) + ((j.rich or j.side) and 64 or 0) + (j.side and 128 or 0)
    local worker = j.worker or ''
    local value = pack('>BBI4I2I7I7I7B', j.state:byte(), flags, min(j.fail, 4294967295), min(j.crash, 65535), j.place,
        j.since, j.at,
        #worker) .. worker
    if not j.is_part then
        j.ndue, j.nnamed = nil, nil
        if j.due ~= j.due0 then j.ndue = j.due or 0 end
        if j.named ~= j.named0 then j.nnamed = j.named or false end
    end
    local rare
    for at = 1, #RARE do
        local own = j[RARE[at]]
        if own ~= nil then
            rare = rare or {}
            rare[RARE[at]] = own
        end
    end
    return rare and value .. cmsgpack.pack(rare) or value
end

-- The key of a job that has no other setting, and where its payload begins.
function key_in(value)
    local first, from = value:byte(), 10 + (value:byte(9) or 0)
    if not first or first < 8 or first > 11 then return nil end
    local size = value:byte(from)
    if not size or #value < from + size then return nil end
    return value:sub(from + 1, from + size), from + 1 + size
end

-- What a push gave, but for the payload, which begins at the second result.
local function read_settings(value)
    local flags, pushed, length = unstruct('>BI7B', value)
    local from, j = 10 + length, {}
    if flags >= 8 then
        j.key, from = key_in(value)
        if not from then error('no key', 0) end
    elseif flags >= 4 then
        local size = unstruct('>I4', value, from)
        j = cmsgpack.unpack(value:sub(from + 4, from + 3 + size))
        j.rich = true
        from = from + 4 + size
    end
    j.prio, j.pushed, j.kind = flags % 4, pushed, value:sub(10, 9 + length)
    return j, from
end

-- A job from both values. It fails if they are damaged.
local function read_job(n, value, state)
    local j, from = read_settings(value)
    j.n, j.payload = n, value:sub(from)
    j.due0, j.named0 = j.due, j.named
    if not state then
        j.state, j.place, j.fail, j.crash = 'r', n, 0, 0
        j.since = j.given or j.pushed
        j.at = max(j.due or 0, j.since)
    else
        local code, own, fail_, crash, place, since, at, worker = unstruct('>BBI4I2I7I7I7B', state)
        j.state, j.fail, j.crash, j.place, j.since, j.at, j.has_state = STATES[code], fail_, crash, place, since, at,
            true
        if own > 0 then
            j.silent, j.stopping, j.suspect = own % 2 >= 1, own % 4 >= 2, own % 8 >= 4
            j.kcount, j.tcount, j.taken = own % 16 >= 8, own % 32 >= 16, own % 64 >= 32
            j.side = own >= 128
        end
        if #state < 30 + worker then return { state = nil } end
        if worker > 0 then j.worker = state:sub(31, 30 + worker) end
        if #state > 30 + worker then
            for name, rare in pairs(cmsgpack.unpack(state:sub(31 + worker))) do j[name] = rare end
            if j.ndue then j.due = j.ndue > 0 and j.ndue or nil end
            if j.nnamed ~= nil then j.named = j.nnamed or nil end
        end
    end
    return j
end

-- A job from both values. One that cannot be read is shown as dead, with the reason, so that it
-- holds up no other job; `damaged` is what can be read of it.
function job_of(n, value, state)
    local ok, j = pcall(read_job, n, value, state)
    if ok and j.state then return j end
    local why = ok and 'its state is cut or unknown' or tostring(j):match('bad argument.*$') or 'its settings cannot be read'
    ok, j = pcall(read_job, n, value)
    if not ok then j = { n = n, prio = 2, pushed = 0, kind = 'damaged', payload = value, is_lost = true } end
    j.state, j.place, j.fail, j.crash, j.since, j.at = 'd', n, 0, 0, 0, EVER
    j.damaged, j.err = true, 'its record is damaged: ' .. why
    return j
end

-- Of a running job that leaves nothing but its places: its key and its kind, and which it has (the
-- bits of its state).
function places_of(value, own)
    local ok, j = pcall(read_settings, value)
    if not ok or j.id or j.fp or j.keep then return nil end
    return { key = j.key, kind = j.kind, kcount = own % 16 >= 8, tcount = own % 32 >= 16 }
end

function write_state(q, j)
    put(q, 'HSET', q.k[STATE], whole(j.n), state_value(j))
    j.has_state = true
end

-- The values of jobs: one alone costs half of a list.
function values_of(key, numbers)
    if #numbers == 1 then return { call('HGET', key, numbers[1]) } end
    return call('HMGET', key, unpack(numbers))
end

function write_job(q, j) put(q, 'HSET', q.k[JOB], whole(j.n), job_value(j)) end

function load(q, n)
    local value = n and call('HGET', q.k[JOB], n)
    if not value then return nil end
    local j = job_of(n, value, call('HGET', q.k[STATE], n))
    if j.damaged and q.writes then bury(q, j) end
    return j
end

-- What changes of a job alone, without its payload and its settings: for calls that look at a
-- lease.
local NO_JOB = '\2' .. ('\0'):rep(8)

function load_part(q, n)
    local state = n and call('HGET', q.k[STATE], n)
    if not state then return nil end
    local j = job_of(n, NO_JOB, state)
    if j.damaged then return load(q, n) end
    j.is_part, j.rich = true, bits(state:byte(2), 64) > 0
    return j
end

function id_of(j) return j.id or '~' .. whole(j.n) end

function is_live(j) return j.state ~= 'f' and j.state ~= 'd' end

-- The fingerprint by which it refuses twins as long as it is there.
function unique_of(j)
    return (j.till == 'd' or j.till == 'c' and not j.taken) and not j.alike and j.fp or nil
end

function shown_state(j, now)
    return NAMES[j.state] or (j.at <= now and 'ready' or 'scheduled')
end

-- The job of this id, in whatever state it is.
function find(q, id)
    if id:find('^~[1-9]%d*$') and #id < 18 then
        local j = load(q, tonumber(id:sub(2)))
        return j and not j.id and j or nil
    end
    local n = call('HGET', q.k[INDEX], 'n' .. id)
    return n and load(q, tonumber(n)) or nil
end

function required(q, id)
    local j = find(q, id)
    if not j then fail('WQ004', 'there is no job ' .. quoted(id:sub(1, 255)), id:sub(1, 255)) end
    return j
end

-- What is remembered until a time: `forget` has the time, by the sort (w: a fingerprint; e: a
-- success; r: a root; g: an id; N: a note) and the name.

function remember(q, sort, name, until_, value)
    if value then put(q, 'HSET', q.k[INDEX], sort .. name, value) end
    put(q, 'ZADD', q.k[FORGET], until_, sort .. name)
end

-- Remembers ids of jobs that are gone: up to a million of them.
function forget(q, id)
    if not id or q.o.ids_for == 0 then return end
    local r, k = q.r, q.k[FORGET]
    if not call('ZSCORE', k, 'g' .. id) then r[GONE] = r[GONE] + 1 end
    put(q, 'ZADD', k, q.now + q.o.ids_for, 'g' .. id)
    if r[GONE] > 1000000 then
        for _, member in ipairs(call('ZRANGE', k, 0, 15)) do
            if member:byte() == 103 then
                call('ZREM', k, member)
                r[GONE] = r[GONE] - 1
                set_rare(q, 'lost', 1)
                break
            end
        end
    end
end

-- The mark of a fingerprint within its time (or, with `any`, also behind it): until, since, id.
function mark_of(q, fp, any)
    local mark = call('HGET', q.k[INDEX], 'w' .. fp)
    if not mark then return nil end
    local until_, since, id = mark:match('^(%d+) (%d+) (.*)$')
    if tonumber(until_) <= q.now and not any then return nil end
    return id, tonumber(until_), tonumber(since)
end

-- A success (its number) or a root (its time), while it is remembered.
function remembered(q, sort, name)
    local value = call('HGET', q.k[INDEX], sort .. name)
    if not value then return nil end
    local until_, number_ = value:match('^(%d+) (%d+)$')
    return tonumber(until_) > q.now and tonumber(number_) or nil
end

-- Deletes all that is stored of a job.
function delete_job(q, j)
    local k, n = q.k, whole(j.n)
    put(q, 'HDEL', k[JOB], n)
    if j.has_state then put(q, 'HDEL', k[STATE], n) end
    if j.side then
        put(q, 'HDEL', k[DATA], n)
        put(q, 'HDEL', k[META], n)
        put(q, 'HDEL', k[SHOWN], n)
    end
    if j.id and call('HGET', k[INDEX], 'n' .. j.id) == n then put(q, 'HDEL', k[INDEX], 'n' .. j.id) end
end

-- The progress that a job shows: fraction, time, note.
function progress_of(q, n)
    local shown = call('HGET', q.k[SHOWN], n)
    if not shown then return nil end
    local fraction, noted = unstruct('>dd', shown)
    return fraction, noted, shown:sub(17)
end
