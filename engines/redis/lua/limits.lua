-- Limits: how many jobs of a key, a kind or a queue run at once, and the tokens of rates.
--
-- `use` has for `k` and a key, or `t` and a kind, how many of its jobs run, and for `b` and a limit
-- its tokens. `turn` has the limits that may have a place for a job that they hold, and `refill`
-- when the tokens for the next one are there.

local bounds_of, limits_for, taken_of, read_taken, add_taken, bucket_of, tokens_at, take_tokens, take_places, leave_place,
    leave_places, full_limit, call_again, called, count_running

-- The bounds of a limit: its own, or those of each key.
function bounds_of(q, name) return q.o.limits[name] or name:byte() == 107 and q.o.limits.e or nil end

-- The limits of a job, beside that of the queue.
function limits_for(q, j)
    if j.limits then return j.limits end
    local o, names = q.o, {}
    j.limits = names
    if j.key and (o.e_limits or o.k_limits) and bounds_of(q, 'k' .. j.key) then names[1] = 'k' .. j.key end
    if o.t_limits and o.limits['t' .. j.kind] then names[#names + 1] = 't' .. j.kind end
    return names
end

function taken_of(q, name)
    if name == 'q' then return call('ZCARD', q.k[RUN]) end
    local taken = q.used[name]
    if not taken then
        taken = tonumber(call('HGET', q.k[USE], name) or 0)
        q.used[name] = taken
    end
    return taken
end

-- Reads at once how many jobs of these keys run (names of limits; false: none).
function read_taken(q, all)
    local used, names = q.used, {}
    for at = 1, #all do
        local name = all[at]
        if name and not used[name] then names[#names + 1], used[name] = name, 0 end
    end
    if #names == 0 then return end
    local values = values_of(q.k[USE], names)
    for at = 1, #names do used[names[at]] = tonumber(values[at] or 0) end
end

-- They are written at the end of the call.
function add_taken(q, name, by)
    q.used[name], q.counted = taken_of(q, name) + by, q.counted or {}
    q.counted[name] = true
end

-- The tokens of a rate as they are now, in parts.
function bucket_of(q, name, limit)
    local value = call('HGET', q.k[USE], 'b' .. name)
    if not value then return limit.burst * limit.unit end
    local level, unit, per, since = unstruct('>dddd', value)
    if per ~= limit.per then
        -- The rate has changed since. Whole tokens stay.
        level = floor(level / unit) * limit.unit
    elseif unit ~= limit.unit then
        level = floor(level * limit.unit / unit)
    end
    if since > q.now then
        -- The clock was set back: tokens come from now on.
        since = q.now
        if q.writes then call('HSET', q.k[USE], 'b' .. name, pack('>dddd', level, limit.unit, limit.per, since)) end
    end
    return min(level + (q.now - since) * limit.gain, limit.burst * limit.unit + limit.gain - 1)
end

-- When a rate has the tokens for a job of this cost. One above a full bucket needs a full one, and
-- leaves a debt.
function tokens_at(q, name, limit, cost)
    local missing = max(min(cost, limit.burst) * limit.unit - bucket_of(q, name, limit), 0)
    return q.now + min(math.ceil(missing / limit.gain), LATEST)
end

function take_tokens(q, name, limit, cost)
    call('HSET', q.k[USE], 'b' .. name, pack('>dddd', bucket_of(q, name, limit) - cost * limit.unit, limit.unit,
        limit.per, q.now))
end

-- A job takes its places, and leaves them. Jobs of kinds are counted if a limit bounds them.
function take_places(q, j)
    if j.key and not j.kcount then
        j.kcount = true
        add_taken(q, 'k' .. j.key, 1)
    end
    if q.o.counts_kinds and not j.tcount then
        j.tcount = true
        add_taken(q, 't' .. j.kind, 1)
    end
end

-- Calls the first held job of a limit, if it has one, unless it stands there already.
local function ring_limit(q, name)
    if q.r[LINES] == 0 then return end
    local line_ = line_of(name)
    if first_in(q, line_, line_) then
        call('ZADD', q.k[TURN], 'NX', next_number(q), name)
        q.freed = true
    end
end

function leave_place(q, name)
    add_taken(q, name, -1)
    if q.o.limited then ring_limit(q, name) end
end

function leave_places(q, j)
    if j.kcount and not j.key then
        -- Its record was damaged, so the key is not known of which it has a place.
        j.kcount = nil
        count_running(q)
    end
    if j.kcount then leave_place(q, 'k' .. j.key) end
    if j.tcount then leave_place(q, 't' .. j.kind) end
    j.kcount, j.tcount = nil, nil
end

-- Whether the limits of a job have a place and tokens for it: the first one that has not. `own` is
-- the line in which it stands: behind the waiters of another limit it does not overtake them.
-- `awaited`: the limits of whose tokens an earlier job waits in this call.
function full_limit(q, j, own, awaited)
    local full
    for _, name in ipairs(limits_for(q, j)) do
        local limit = bounds_of(q, name)
        local is_full = limit.at_once and taken_of(q, name) >= limit.at_once
        if not is_full and own ~= name and name:byte() == 116 and j.at <= q.now then
            -- Keys take turns, so who comes later stands behind those that wait.
            for prio = 0, j.prio do is_full = is_full or #heads(q, name, prio, 1) > 0 end
            if is_full then
                call('ZADD', q.k[TURN], 'NX', next_number(q), name)
                q.freed = true
            end
        end
        if not is_full and limit.count and (awaited[name] or tokens_at(q, name, limit, j.cost or 1) > q.now) then
            -- A cheaper job does not overtake one that waits for tokens.
            awaited[name] = true
            is_full = true
        end
        if is_full then full = full or name end
    end
    return full
end

-- Notes when a limit with held jobs is to be looked at again: now, when it has the tokens for the
-- first one, or (null) when one of its jobs ends.
function call_again(q, name)
    local k, limit = q.k, bounds_of(q, name)
    -- Without lines no limit holds a job, or was called.
    if q.r[LINES] == 0 and not q.has_called then return end
    local first
    for prio = 0, 3 do first = first or heads(q, name, prio, 1)[1] end
    call('ZREM', k[TURN], name)
    if not first or limit and limit.at_once and taken_of(q, name) >= limit.at_once then return end
    if limit and limit.count then
        local _, n = parsed(entry_in(first))
        local j = load(q, n)
        local at = tokens_at(q, name, limit, j and j.cost or 1)
        if at > q.now then
            call('ZADD', k[REFILL], at, name)
            return
        end
    end
    call('ZADD', k[TURN], next_number(q), name)
end

-- The limits that may have a place now, up to 64: those that were called, and those with tokens.
function called(q)
    local k = q.k
    if q.r[LINES] == 0 and q.r[WALK] == 0 then return {} end
    for _, name in ipairs(call('ZRANGEBYSCORE', k[REFILL], '-inf', q.now, 'LIMIT', 0, 64)) do
        call('ZREM', k[REFILL], name)
        call('ZADD', k[TURN], 'NX', next_number(q), name)
    end
    if q.r[WALK] == 1 then
        -- The limits have changed: all that hold jobs look again, piece by piece.
        local behind = call('HGET', k[HEAD], 'walk')
        for _, letter in ipairs({ 'k', 't' }) do
            if not behind or behind:sub(1, 1) <= letter then
                local names = names_of_lines(q, letter, 64, behind and behind:sub(1, 1) == letter and behind or nil)
                for _, name in ipairs(names) do call('ZADD', k[TURN], 'NX', next_number(q), name) end
                if #names == 64 then
                    call('HSET', k[HEAD], 'walk', names[64])
                    break
                elseif letter == 't' then
                    call('HDEL', k[HEAD], 'walk')
                    q.r[WALK] = 0
                end
            end
        end
    end
    local names = call('ZRANGE', k[TURN], 0, 63)
    q.has_called = #names > 0
    return names
end

-- Counts the running jobs anew: those that began before there was a limit for them, and without one
-- that cannot be read, whose places are not known.
function count_running(q)
    local k, used = q.k, {}
    for _, n in ipairs(call('ZRANGE', k[RUN], 0, -1)) do
        local j = load(q, tonumber(n))
        if j and j.state == 'x' then
            if j.key and not j.kcount or q.o.counts_kinds and not j.tcount then
                take_places(q, j)
                write_state(q, j)
            end
            for _, name in ipairs({ j.kcount and j.key and 'k' .. j.key or '', j.tcount and 't' .. j.kind or '' }) do
                used[name] = (used[name] or 0) + 1
            end
        end
    end
    save_counts(q)
    local all = call('HGETALL', k[USE])
    q.used = {}
    for at = 1, #all, 2 do
        local name, letter = all[at], all[at]:byte()
        if (letter == 107 or letter == 116) and used[name] ~= tonumber(all[at + 1]) then
            if used[name] then call('HSET', k[USE], name, used[name]) else call('HDEL', k[USE], name) end
            ring_limit(q, name)
        end
    end
end
