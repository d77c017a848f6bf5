-- Where a job waits: in the lane of its priority (ready), by its time (not due yet), or in a line
-- of `held`.
--
-- An entry is the place of a job in the order of the queue, and its number, if that is another one
-- or the job has run. It counts as long as it is that of its job, which is ready and due. So what
-- leaves the middle of a lane need not be searched for: entries may be stale, and are passed by. (A
-- job that failed takes its first place again, and with it an entry that it may have left there:
-- then it stands in two places, and the second one is stale as soon as it is claimed.)
--
-- A line of `held` is the members that begin with its name, all with the score 0. The lines: `k`
-- and a key, or `t` and a kind: held by that limit; `o` and a kind: ready jobs that a claim of
-- other kinds has met; `s`: ready jobs that have to run alone; `w`: jobs that wait for others. The
-- jobs of a line are in the order of priority, time and place. In that of a kind's limit keys take
-- turns: its members go by the priority, the turn of the key, and the key.

local line_of, entry_of, parsed, entry_in, first_in, hold, unhold, enter_line, leave_line, move_due, counted_by,
    put_in_line, entries_in, names_of_lines, heads, note_lane, note_empty, may_have

-- Bytes that sort like the name, and with none of which another name begins.
function line_of(name)
    if name:find('\0', 1, true) then name = name:gsub('%z', '\0\255') end
    return name .. '\0\1'
end

function entry_of(j)
    if j.place == j.n and not j.taken then return whole(j.n) end
    return whole(j.place) .. ':' .. whole(j.n)
end

-- The place and the number of an entry.
function parsed(entry)
    if #entry == 16 then
        local n = tonumber(entry)
        return n, n
    end
    return tonumber(entry:sub(1, 16)), tonumber(entry:sub(18))
end

function entry_in(member) return member:sub(member:byte(-17) == 58 and -33 or -16) end

local function order_of(j) return format('%017d', j.at) .. entry_of(j) end

-- The first member in `held` from here on that is in this line.
function first_in(q, from, line_)
    local member = call('ZRANGEBYLEX', q.k[HELD], '[' .. from, '(' .. line_ .. '\255', 'LIMIT', 0, 1)[1]
    return member
end

-- In the line of a kind's limit, the jobs of one key and priority, and that part of its order that
-- says whose turn it is.
local function part_of(name, prio, key) return line_of(name) .. prio .. line_of(key and 'k' .. key or '') end

local function turn_of(name, prio, key) return 'z' .. line_of(name) .. prio .. 'z', line_of(key and 'k' .. key
    or '') end

-- Lets a limit, or another line, hold a job. In `use`, `turn ..` is the turn that a key has in a
-- line.
function hold(q, j, name)
    local member
    if name:byte() == 116 then
        local part = part_of(name, j.prio, j.key)
        local first, key = turn_of(name, j.prio, j.key)
        if not call('HGET', q.k[USE], first .. key) then
            local turn = whole(next_number(q))
            put(q, 'HSET', q.k[USE], first .. key, turn)
            put(q, 'ZADD', q.k[HELD], 0, first .. turn .. key)
        end
        member = part .. order_of(j)
    else
        member = line_of(name) .. j.prio .. order_of(j)
    end
    if name ~= 'w' then q.r[LINES] = 1 end
    put(q, 'ZADD', q.k[HELD], 0, member)
end

-- Takes a job out of a line. If it `begins`, its key goes to the end of those that take turns.
function unhold(q, j, name, begins)
    if name:byte() ~= 116 then return put(q, 'ZREM', q.k[HELD], line_of(name) .. j.prio .. order_of(j)) end
    local part = part_of(name, j.prio, j.key)
    put(q, 'ZREM', q.k[HELD], part .. order_of(j))
    local first, key = turn_of(name, j.prio, j.key)
    local has_more = first_in(q, part, part)
    if has_more and not begins then return end
    local turn = call('HGET', q.k[USE], first .. key)
    if not turn then return end
    put(q, 'ZREM', q.k[HELD], first .. turn .. key)
    put(q, 'HDEL', q.k[USE], first .. key)
    if has_more then
        turn = whole(next_number(q))
        put(q, 'HSET', q.k[USE], first .. key, turn)
        put(q, 'ZADD', q.k[HELD], 0, first .. turn .. key)
    end
end

-- The lanes that may have an entry, as bits.
local BITS = { [0] = 1, 2, 4, 8 }

function note_lane(r, prio)
    local bit_ = BITS[prio]
    if bits(r[LANES], bit_) == 0 then r[LANES] = r[LANES] + bit_ end
end

function note_empty(r, prio)
    local bit_ = BITS[prio]
    if bits(r[LANES], bit_) > 0 then r[LANES] = r[LANES] - bit_ end
end

function may_have(r, prio) return bits(r[LANES], BITS[prio]) > 0 end

-- Puts a ready job where it waits. The caller has moved what is due before, so that lanes are in
-- order.
function enter_line(q, j)
    local k, r = q.k, q.r
    if j.at > q.now or r[NEXT_DUE] <= q.now then
        put(q, 'ZADD', k[DUE], j.at, entry_of(j))
        if j.at < r[NEXT_DUE] then r[NEXT_DUE] = j.at end
        if j.at <= q.now then q.ready = q.ready + 1 end
    elseif j.suspect then
        hold(q, j, 's')
        q.ready = q.ready + 1
    else
        put(q, 'RPUSH', k[LANE + j.prio], entry_of(j))
        note_lane(r, j.prio)
        q.ready = q.ready + 1
    end
end

-- Takes a job that waits out of its place. Entries in lanes and in lines of kinds become stale.
function leave_line(q, j)
    if j.state == 'r' then
        put(q, 'ZREM', q.k[DUE], entry_of(j))
        if j.suspect then unhold(q, j, 's') end
    elseif j.state == 'h' then
        unhold(q, j, j.held)
    elseif j.state == 'w' then
        unhold(q, j, 'w')
    end
end

-- Moves the jobs that are due into their lanes, up to 256 of them.
function move_due(q)
    local k, r = q.k, q.r
    if r[NEXT_DUE] > q.now then return end
    local entries = call('ZRANGEBYSCORE', k[DUE], '-inf', q.now, 'LIMIT', 0, 256)
    for _, entry in ipairs(entries) do
        local _, n = parsed(entry)
        local j = load(q, n)
        put(q, 'ZREM', k[DUE], entry)
        if j and j.state == 'r' and entry_of(j) == entry then
            if j.suspect then
                hold(q, j, 's')
            else
                put(q, 'RPUSH', k[LANE + j.prio], entry)
                note_lane(r, j.prio)
            end
            q.ready = q.ready + 1
            if j.since < j.at then tell(q, id_of(j), 'ready') end
        end
    end
    local first = call('ZRANGE', k[DUE], 0, 0, 'WITHSCORES')
    r[NEXT_DUE] = tonumber(first[2]) or 2 * LATEST
end

-- Whether an entry counts; the job, if so.
function counted_by(q, entry, n, value, state)
    if not value then return nil end
    local j = job_of(n, value, state)
    if j.damaged and q.writes then load(q, n) end
    if j.state ~= 'r' or entry_of(j) ~= entry then return nil end
    if j.at <= q.now then return j end
    -- The clock was set back.
    call('ZADD', q.k[DUE], j.at, entry)
    q.r[NEXT_DUE] = min(q.r[NEXT_DUE], j.at)
end

-- The lines of kinds. Here a member has up to 64 entries, since a claim of other kinds may meet
-- very many jobs at once.

-- `first` is the job of the first entry.
function put_in_line(q, kind, prio, first, entries)
    q.r[LINES] = 1
    call('ZADD', q.k[HELD], 0, line_of('o' .. kind) .. prio .. format('%017d', first.at) .. whole(first.place)
        .. '|'
        .. table.concat(entries, ','))
end

-- The entries of a member of such a line, and what comes before them.
function entries_in(member)
    local bar = member:find('|[%d:,]+$')
    local entries = {}
    for entry in member:sub(bar + 1):gmatch('[%d:]+') do entries[#entries + 1] = entry end
    return entries, member:sub(1, bar - 34)
end

-- The names of lines that begin with this letter: up to `most`, behind one of them.
function names_of_lines(q, letter, most, behind)
    local names, from = {}, '[' .. (behind and line_of(behind) .. '\255' or letter)
    while #names < most do
        local member = call('ZRANGEBYLEX', q.k[HELD], from, '(' .. string.char(letter:byte() + 1), 'LIMIT', 0, 1)[1]
        if not member then break end
        local line_ = member:match('^(.-%z\1)')
        local name = line_:sub(1, -3):gsub('%z\255', '\0')
        names[#names + 1] = name
        from = '[' .. line_ .. '\255'
    end
    return names
end

-- The first jobs of a line and priority: their members. Of a kind's limit, those of the key whose
-- turn it is.
function heads(q, name, prio, most)
    local k = q.k[HELD]
    local from = line_of(name) .. prio
    if name:byte() == 116 then
        local first = turn_of(name, prio)
        local turn = call('ZRANGEBYLEX', k, '[' .. first, '(' .. first .. '\255', 'LIMIT', 0, 1)[1]
        if not turn then return {} end
        from, most = from .. turn:sub(#first + 17), 1
    end
    return call('ZRANGEBYLEX', k, '[' .. from, '(' .. from .. '\255', 'LIMIT', 0, most)
end
