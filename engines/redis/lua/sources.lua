-- Where a claim that looks at each job reads them.

local source, next_of, leave_source

-- A source of jobs: a lane, the line of a kind (its members have many entries), or another line. It
-- is read in pieces, whose entries are kept in order (`all`), and so is which of them are stale or
-- were taken (`passed`).

function source(q, kind_of, name, prio)
    local s = { jobs = {}, first = 1, all = {}, passed = {}, from = 0, prio = prio }
    s[kind_of] = name
    s.line = kind_of == 'lane' and '' or line_of(kind_of == 'chunks' and 'o' .. name or name) .. (prio or '')
    s.is_turn = kind_of == 'name' and name:byte() == 116
    return s
end

local function next_piece(q, c, s)
    local entries, k = {}, q.k[HELD]
    if s.lane then
        s.size = min(2 * (s.size or c.piece / 2), 256)
        local size = min(s.size, c.looks)
        entries = call('LRANGE', q.k[s.lane], s.from, s.from + size - 1)
        s.is_over = #entries < size
    elseif s.is_turn then
        for prio = s.prio or 0, s.prio or 3 do entries[1] = entries[1] or heads(q, s.name, prio, 1)[1] end
        if entries[1] then entries[1] = entry_in(entries[1]) end
        s.is_over = true
    else
        local members = call('ZRANGEBYLEX', k, s.behind and '(' .. s.behind or '[' .. s.line, '(' .. s.line .. '\255',
            'LIMIT', 0,
            s.chunks and 1 or c.short)
        s.behind, s.is_over = members[#members] or s.behind, #members < (s.chunks and 1 or c.short)
        if s.chunks and members[1] then
            entries = entries_in(members[1])
            s.members = s.members or {}
            s.members[#s.members + 1] = { members[1], entries }
        elseif not s.chunks then
            for at = 1, #members do entries[at] = entry_in(members[at]) end
        end
    end
    s.from, c.looks = s.from + #entries, c.looks - #entries
    return entries
end

-- Puts the first jobs of a piece of a lane into the lines of their kinds, if the claim is for
-- others and they have no settings: the common case, with many of them. Returns how many these are.
-- (`head`: so many have left the lane.)
local function pass_others(c, s, entries, values, states)
    if not c.set or not s.lane or s.keeps or #s.all > 0 then return 0 end
    -- (The length of a kind and the kind, as they are in a value.)
    local passed, last, size, to, list, length = 0, nil, 0, nil, nil, 0
    for at = 1, #entries do
        local value = values[at]
        -- (What is damaged is left to the one who looks at each job.)
        if value and #value < 9 then break end
        if value then
            if value:sub(9, size) ~= last then
                size = 9 + value:byte(9)
                last = value:sub(9, size)
                local kind = last:sub(2)
                to = c.others[kind .. s.prio]
                if not to then
                    local n, _, pushed = tonumber(entries[at]), unstruct('>BI7', value)
                    to = { { n = n, place = n, at = pushed }, {}, kind, s.prio }
                end
                list, length = to[2], #to[2]
            end
            if states[at] or value:byte() >= 4 or c.set[to[3]] then break end
            if length == 0 then c.others[to[3] .. s.prio] = to end
            length = length + 1
            list[length] = entries[at]
            if #value > 1023 then c.looks = c.looks - floor(#value / 1024) end
        end
        passed = at
    end
    s.head = (s.head or 0) + passed
    return passed
end

-- The next job of a source: {job, entry}.
function next_of(q, c, s)
    while true do
        local one = s.jobs[s.first]
        while one and not one[1] do
            s.first = s.first + 1
            one = s.jobs[s.first]
        end
        if one or s.is_over then return one end
        if c.looks <= 0 then
            c.again = true
            return nil
        end
        local entries = next_piece(q, c, s)
        s.jobs, s.first = {}, 1
        local numbers, found = {}, {}
        for at = 1, #entries do numbers[at] = #entries[at] == 16 and entries[at] or entries[at]:sub(18) end
        if #entries > 0 then
            local values, states = values_of(q.k[JOB], numbers), values_of(q.k[STATE], numbers)
            s.first = pass_others(c, s, entries, values, states) + 1
            for at = s.first, #entries do
                local _, n = parsed(entries[at])
                local j
                if s.name and s.name ~= 's' then
                    j = values[at] and job_of(n, values[at], states[at])
                else
                    j = counted_by(q, entries[at], n, values[at], states[at])
                end
                local counts = j and (j.state == 'r' or j.state == 'h' and j.held == s.name
                    and entry_of(j) == entries[at])
                if counts and (s.lane or s.chunks) and j.prio ~= s.prio then
                    counts = false
                    if not j.moved then
                        j.err = 'its record is damaged: it is in the lane of another priority'
                        bury(q, j)
                    end
                end
                -- Large payloads take time to read.
                c.looks = c.looks - (values[at] and floor(#values[at] / 1024) or 0)
                s.jobs[at] = { counts and j, entries[at] }
                s.all[#s.all + 1] = entries[at]
                if counts then found[#found + 1] = j.key and 'k' .. j.key else s.passed[entries[at]] = true end
            end
            if #found > 1 and q.o.limited then read_taken(q, found) end
        end
    end
end

-- Takes what is stale, taken or moved off the head of a lane, and out of the members of a kind's
-- line.
function leave_source(q, s)
    if s.lane then
        local gone, head = 0, s.head or 0
        while gone < #s.all and s.passed[s.all[gone + 1]] do gone = gone + 1 end
        if gone + head > 0 then call('LTRIM', q.k[s.lane], gone + head, -1) end
        if s.is_over and gone == #s.all then note_empty(q.r, s.lane - LANE) end
    end
    for _, member in ipairs(s.members or {}) do
        local left = {}
        for _, entry in ipairs(member[2]) do
            if not s.passed[entry] then left[#left + 1] = entry end
        end
        if #left < #member[2] then
            call('ZREM', q.k[HELD], member[1])
            local _, n = parsed(left[1] or whole(0))
            local j = left[1] and load(q, n)
            if j then put_in_line(q, s.chunks, s.prio, j, left) end
        end
    end
end
