#!lua name=waterline
-- The job queue. This file: the keys of a queue, its registers, the arguments of a call, and how a
-- call begins and ends.
--
-- The files are joined in the order of `build.sh` into one library. Each function is one call,
-- which nothing interrupts. Redis undoes nothing of a function that fails, so each one checks
-- first, and writes then.
--
-- * Keys: a call declares the 26 keys of its queue (of each of its queues), in the order below, so
--   that a cluster refuses it while their slot moves. Without a cluster the first key is enough for
--   a call of one queue, and costs less. The others follow from it.
-- * Arguments: the first one is empty (in a test: the time of its server in milliseconds). Then
--   come those of the function, one by one. A number is decimal, and empty for null. A text that
--   may be null is empty, or `=` and the text. A flag is 1 or 0. A list is its length (empty: null)
--   and its elements; a list of records is their number and the fields of each one. Kinds and
--   payloads are as they are.
-- * Answers: a list of rows. The columns of a row are in a fixed order, null is nil, and nulls at
--   its end are left out. A time without end is the text 9223372036854775807.
-- * Errors: `CODE queue detail hint sentence`. The three words have `%` and two digits for a byte
--   that is no letter, digit or one of `_.~:/+-`, and are `-` if there is none.
-- * Times are milliseconds since 1970 by the clock of this server, and durations are milliseconds.

-- (What is not there while a library is loaded. The first call sets it.)
local call, pack, unstruct, bits, floor, min, max, format

-- head: options and registers; job: what a push gave; state: of the jobs that have moved; lane: the
-- ready jobs of each of 4 priorities; due: ready ones by their time; run, done, dead, expires: by
-- their times; forget: what is remembered until a time; index: ids, fingerprints and signatures;
-- use: of limits; held: lines of jobs (see lines.lua); turn: the limits that may have a place;
-- refill: when a rate has tokens; after, before: edges in both directions; data, meta, shown
-- (progress): of jobs; shown has the last changes, too; note; tick: schedules; seen: averages and
-- workers.
local HEAD, JOB, STATE, LANE, DUE, RUN, DONE, DEAD, EXPIRES, FORGET, INDEX, USE, HELD = 1, 2, 3, 4, 8, 9, 10, 11, 12,
    13, 14, 15, 16
local TURN, REFILL, AFTER, BEFORE, DATA, META, SHOWN, NOTE, TICK, SEEN = 17, 18, 19, 20, 21, 22, 23, 24, 25, 26

-- A million years in place of a longer time, and a time without end.
local LATEST, EVER, ENDLESS = 2 ^ 55, 2 ^ 56 - 8, '9223372036854775807'

local function bounded(time) return time and min(time, LATEST) end

-- A whole number as text. (Lua would shorten it.)
local function whole(number) return format('%d', number) end

-- Fails with a code of the protocol. The error goes through `define`.
local function fail(code, text, detail, hint)
    error({ code = code, text = #text > 1000 and text:sub(1, 1000) .. '…' or text, detail = detail, hint = hint }, 0)
end

local function refuse(text) fail('WQ002', text) end

local function quoted(value) return (cjson.encode(value):gsub('\\/', '/')) end

-- Arguments.

local arg, number, text, flag, count, kinds_of

do
    local function missing(q)
        refuse('the call has ' .. #q.args .. ' arguments, and needs more: see what comes before its lists')
    end

    -- The argument at this place, or the next one.
    function arg(q, at)
        if not at then
            at = q.at + 1
            q.at = at
        end
        return q.args[at] or missing(q)
    end

    function number(q, at)
        local value = arg(q, at)
        if value == '' then return nil end
        local number_ = tonumber(value)
        if not number_ or number_ % 1 ~= 0 or number_ > 2 ^ 63 or number_ < -2 ^ 63 then
            refuse(quoted(value:sub(1, 60)) .. ' is no whole number of 64 bits')
        end
        return number_
    end

    function text(q, at)
        local value = arg(q, at)
        if value == '' then return nil end
        if value:byte() ~= 61 then refuse('a text is empty (null), or begins with `=`, and is not ' .. quoted(value:sub(1,
            60))) end
        return value:sub(2)
    end

    function flag(q, at)
        local value = arg(q, at)
        if value == '1' then return true end
        if value == '0' then return false end
        if value ~= '' then refuse('a flag is 1 or 0, and not ' .. quoted(value:sub(1, 60))) end
    end

    -- The length of a list; null: there is none.
    function count(q, most)
        local length = number(q)
        if length and (length < 0 or length > most) then
            refuse('this call takes ' .. most .. ' at most, and not ' .. whole(length))
        end
        return length
    end

    -- A list of kinds as a set, and in order; null: all.
    function kinds_of(q)
        local length = count(q, 10000)
        if not length then return nil end
        local set, all = {}, {}
        for _ = 1, length do
            local kind = arg(q)
            if not set[kind] then all[#all + 1] = kind end
            set[kind] = true
        end
        return set, all
    end
end

-- Registers: numbers that each call reads and may change. LAST: the last number that was given to a
-- job or lease; CLAIMS: how many there were; TICKED; LATEST_SEEN: the latest time; BELL: until when
-- a caller listens; NEXT_DUE: no job of `due` is due before this time; SUSPECTS: the jobs that have
-- to run alone; ENDINGS: of awaited jobs, see edges.lua; LANES: those that may have an entry (1, 2,
-- 4, 8); LINES, EDGES: 1 if there may be some (but those of `w`); NEXT_TICK: when a schedule is
-- due; PAUSED: until then; WATCHED: until when changes are told; GONE: the ids that are
-- remembered; WALK: 1 if all limits have to look again; REVISION of the options. (A list costs less
-- than a table of names, and each one costs a bit.)
local LAST, CLAIMS, TICKED, LATEST_SEEN, BELL, NEXT_DUE, SUSPECTS, ENDINGS, LANES, LINES, EDGES = 1, 2, 3, 4, 5, 6, 7,
    8, 9, 10, 11
local NEXT_TICK, PAUSED, WATCHED, GONE, WALK, REVISION = 12, 13, 14, 15, 16, 17

local function read_registers(raw) return { unstruct('<ddddddddddddddddd', raw) } end

-- Numbers that few calls need: paused_since, back_at and back_by (the last step back of the clock),
-- lost (1: there were more ids than are remembered).
local function rare(q, name) return tonumber(call('HGET', q.k[HEAD], name) or 0) end

local function set_rare(q, name, value) call('HSET', q.k[HEAD], name, whole(value)) end

local options_of, enter

do
    local WORDS = {}
    for word in ('head job state lane0 lane1 lane2 lane3 due run done dead expires forget index use held turn refill '
        .. 'after before data meta shown note tick seen'):gmatch('%w+') do WORDS[#WORDS + 1] = word end

    -- Kept for later calls: by their heads queues, and by their revisions options. In a server with
    -- very many queues, some are.
    local known, most = {}, 0

    local function keep(name, value)
        if most >= 512 then known, most = {}, 0 end
        known[name], most = value, most + 1
        return value
    end

    local function queue_of(head)
        if head:sub(-5) ~= ':head' then
            refuse('the first key of a queue ends with `:head`, and is not ' .. quoted(head:sub(1, 255)))
        end
        local k, begin = {}, head:sub(1, -5)
        for at = 1, 26 do k[at] = begin .. WORDS[at] end
        return keep(head, { k = k, told = {}, used = {} })
    end

    -- Reads the head of a queue whose keys begin after `from`.
    function enter(keys, args, from)
        if #keys < from + 26 and (#keys ~= 1 or from > 0) then
            refuse('a call has the 26 keys of its queue, and not ' .. (#keys - from))
        end
        local head = keys[from + 1]
        local q = known[head] or queue_of(head)
        local time = call('TIME')
        local us = time[1] * 1000000 + time[2]
        local real, clock = (us - us % 1000) / 1000, args[1]
        local now = clock == '' and real or tonumber(clock)
        if not now then refuse('the first argument of each call is empty') end
        local raw, saved = call('HGET', head, 'registers'), q.saved
        -- Nothing stays of the last call but the registers that it has written. (No nil: a table that
        -- lives long makes room for each such field anew.)
        q.args, q.at, q.us, q.real, q.now, q.ready, q.raw, q.saved = args, 1, us, real, now, 0, raw, false
        q.log, q.changed, q.counted, q.untold, q.left, q.drawn = false, false, false, false, false, false
        q.workers, q.name, q.freed, q.has_called = false, false, false, false
        if q.told[1] then q.told = {} end
        if next(q.used) then q.used = {} end
        if not raw then
            q.r, q.o = false, false
        elseif #raw ~= 136 then
            q.r = false
            refuse('the head of the queue is damaged: restore the server from its file, or remove the keys')
        else
            if raw ~= saved then q.r = read_registers(raw) end
            local revision = q.r[REVISION]
            q.o = known[revision] or keep(revision, options_of(call('HGET', head, 'options')))
        end
        return q
    end
end

local function name_of(q) return q.name or call('HGET', q.k[HEAD], 'name') or nil end

-- Writes the numbers of running jobs that have changed (see limits.lua), once in a call.
local function save_counts(q)
    if not q.counted then return end
    local left, gone, k = {}, {}, q.k[USE]
    for name in pairs(q.counted) do
        local count_ = q.used[name]
        if count_ > 0 then
            left[#left + 1], left[#left + 2] = name, count_
        else
            gone[#gone + 1] = name
        end
    end
    q.counted = false
    if left[1] then call('HSET', k, unpack(left)) end
    if gone[1] then call('HDEL', k, unpack(gone)) end
end

-- A number that no job and no lease has had: none comes twice, not even after a failover that lost
-- the last second.
local function next_number(q)
    local r, last = q.r, q.r[LAST] + 1
    if last < q.us then last = q.us end
    r[LAST] = last
    return last
end

-- A channel of the queue: it is in the slot of its keys.
local function channel(q, name) return q.k[HEAD]:sub(1, -5) .. name end

-- Writes of a call that may be refused after some of them note how they are undone. (Only these
-- commands, each with one element.)
local function put(q, command, key, a, b)
    local log = q.log
    if log then
        if command == 'HSET' or command == 'HDEL' then
            local old = call('HGET', key, a)
            log[#log + 1] = old and { 'HSET', key, a, old } or { 'HDEL', key, a }
        elseif command == 'ZADD' or command == 'ZREM' then
            local member = command == 'ZADD' and b or a
            local old = call('ZSCORE', key, member)
            log[#log + 1] = old and { 'ZADD', key, old, member } or { 'ZREM', key, member }
        else
            log[#log + 1] = { 'RPOP', key }
        end
    end
    if b then return call(command, key, a, b) end
    return call(command, key, a)
end

-- What happened, for the caller and for those who watch.

local function note_change(q, id, state)
    if q.r[WATCHED] <= q.real then return end
    q.changed = q.changed or {}
    q.changed[#q.changed + 1] = (state or 'gone') .. ' ' .. id
end

local function tell(q, id, state, data, err, outcome)
    if not outcome then note_change(q, id, state) end
    if (data and #data or 0) + (err and #err or 0) > 65536 then data, err, q.untold = nil, nil, (q.untold or 0) + 1 end
    q.told[#q.told + 1] = { 'told', false, id, outcome or false, state or false, false, false, false, false, false,
        false, false, data or false, err or false }
end

local function line(q, outcome, id, kind, failures, err)
    q.told[#q.told + 1] = { 'line', false, id, outcome, false, false, kind or false, false, false, false, false, false,
        false, err and err:sub(1, 1000) or false, failures }
end

-- What is told, as far as it fits into an answer.
local function add_told(q, rows)
    local most, lines, told = 1024, 0, q.told
    if #told == 0 and not q.untold then return rows end
    for at = 1, min(#told, most) do rows[#rows + 1] = told[at] end
    for at = most + 1, #told do
        if told[at][1] == 'line' and told[at][4] ~= 'held' and told[at][4] ~= 'skipped' then lines = lines + 1 end
    end
    local untold = max(#told - most, 0) + (q.untold or 0)
    if untold > 0 then rows[#rows + 1] = { 'more', untold, false, false, false, lines } end
    return rows
end

local define

do
    local function save(q)
        local r = q.r
        save_counts(q)
        if not r then return end
        local raw = pack('<ddddddddddddddddd', unpack(r, 1, 17))
        if raw ~= q.raw then call('HSET', q.k[HEAD], 'registers', raw) end
        q.saved = raw
    end

    -- Rings for those who listen, if a job has become ready, and for those who watch: `shown` has the
    -- last 4,096 changes, which they read by `wl_told`. (So a lost message loses no change.)
    local function ring(q)
        local r = q.r
        if q.ready > 0 and r[BELL] > q.real then
            r[BELL] = 0
            call('SPUBLISH', channel(q, 'bell'), '')
        end
        if q.changed then
            local length, fields = #q.changed, {}
            local before = call('HINCRBY', q.k[HEAD], 'told', length) - length
            for at = max(1, length - 4095), length do
                fields[#fields + 1] = 'c' .. (before + at) % 4096
                fields[#fields + 1] = whole(before + at) .. ' ' .. q.changed[at]
                if #fields == 2000 or at == length then
                    call('HSET', q.k[SHOWN], unpack(fields))
                    fields = {}
                end
            end
            call('SPUBLISH', channel(q, 'told'), '')
        end
    end

    local function undo(q)
        for at = #q.log, 1, -1 do call(unpack(q.log[at])) end
        local last = q.r[LAST]
        q.r = read_registers(q.raw)
        q.r[LAST] = last
    end

    local function encoded(text)
        if not text then return '-' end
        text = text:sub(1, 255):gsub('[^%w_.~:/+-]', function(byte) return format('%%%02X', byte:byte()) end)
        return text == '-' and '%2D' or text == '' and '%' or text
    end

    -- Makes a function of the library. The body gets the queue, or all queues of the call, and
    -- returns the answer. `flags` are those of Redis. (`many`: it takes several queues; 'first': the
    -- second argument says how many, and other keys follow. `raw`: a queue may not be there.)
    function define(name, flags, body, many, raw)
        local writes = flags[1] ~= 'no-writes'
        local function run(keys, args, queues)
            local last = many == 'first' and 26 * (max(1, tonumber(args[2]) or 1) - 1) or many and max(#keys - 26, 0) or 0
            for from = 0, last, 26 do
                local q = enter(keys, args, from)
                queues[#queues + 1], q.writes = q, writes
                if not q.r and not raw then fail('WQ001', 'there is no such queue, or its keys were removed: open it') end
            end
            if many ~= 'first' and #keys ~= 26 * #queues and #keys > 1 then refuse('a call has the 26 keys of each of its queues, and not ' .. #keys) end
            return body(queues[1], queues, keys)
        end
        redis.register_function({ function_name = name, flags = flags, callback = function(keys, args)
            local queues = {}
            if not call then
                call, pack, unstruct, bits = redis.call, struct.pack, struct.unpack, bit.band
                floor, min, max, format = math.floor, math.min, math.max, string.format
            end
            local ok, answer = pcall(run, keys, args, queues)
            for at = #queues, 1, -1 do
                local q = queues[at]
                if not ok and q.log and q.r then undo(q) end
                if ok and writes and q.r then ring(q) end
                if writes then save(q) end
                -- The queue stays for later calls, and what may be large does not.
                if q.told[1] then q.told = {} end
                q.args, q.log, q.changed, q.workers = false, false, false, false
            end
            if ok then return answer end
            if type(answer) ~= 'table' then return redis.error_reply('WQ000 - - - waterline: ' .. tostring(answer)) end
            if not answer.code then return answer end
            if answer.code == 'NOPERM' then return redis.error_reply('NOPERM ' .. answer.text) end
            local q = queues.fault or queues[1]
            return redis.error_reply(table.concat({ answer.code, encoded(q and name_of(q)), encoded(answer.detail),
                encoded(answer.hint),
                'waterline: ' .. answer.text }, ' '))
        end })
    end
end
