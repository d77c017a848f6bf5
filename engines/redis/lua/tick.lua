-- All that has to happen in time. Any number of callers may tick: there is no leader, and a queue
-- goes on as long as any worker claims from it. A tick does a part of what is due, and if there is
-- more, the next call ticks again.

local schedule_of, write_schedule, still_runs, push_tick, tick, set_clock_back

-- Ends jobs that no worker has taken by the time at which they expire.
function expire_some(q, most)
    local numbers = call('ZRANGEBYSCORE', q.k[EXPIRES], '-inf', q.now, 'LIMIT', 0, most)
    for _, n in ipairs(numbers) do
        local j = load(q, tonumber(n))
        if not j or not is_live(j) or j.state == 'x' or j.taken then
            put(q, 'ZREM', q.k[EXPIRES], n)
        else
            end_unrun(q, j, 'it expired: no worker had taken it in time')
            resolve(q)
        end
    end
    return #numbers == most
end

local function end_leases(q, most)
    local numbers = call('ZRANGEBYSCORE', q.k[RUN], '-inf', q.now, 'LIMIT', 0, most)
    local jobs = {}
    for _, n in ipairs(numbers) do
        local j = load(q, tonumber(n))
        if j and j.state == 'x' then jobs[#jobs + 1] = j else call('ZREM', q.k[RUN], n) end
    end
    -- Those of one moment in the order of their claims.
    table.sort(jobs, function(a, b)
        if a.at ~= b.at then return a.at < b.at end
        return a.place < b.place
    end)
    for _, j in ipairs(jobs) do
        take_back(q, j)
        resolve(q)
    end
    return #numbers == most
end

-- Deletes jobs that are no longer to be kept.
local function drop_ended(q, key, most, tells)
    local k = q.k
    local numbers = call('ZRANGEBYSCORE', k[key], '-inf', q.now, 'LIMIT', 0, most)
    if #numbers == 0 then return false end
    local states, plain = call('HMGET', k[STATE], unpack(numbers)), {}
    local waits = q.r[EDGES] == 1
    for at, n in ipairs(numbers) do
        if tells or waits or not states[at] or bits(states[at]:byte(2), 64) > 0 then
            local j = load(q, tonumber(n))
            if j then
                -- Those that it holds go on: it is gone.
                end_edges(q, j.n, false)
                delete_job(q, j)
                resolve(q)
                forget(q, j.id)
                if tells then tell(q, id_of(j), nil) end
            end
        else
            plain[#plain + 1] = n
        end
    end
    if #plain > 0 then
        call('HDEL', k[JOB], unpack(plain))
        call('HDEL', k[STATE], unpack(plain))
    end
    call('ZREM', k[key], unpack(numbers))
    return #numbers == most
end

-- Forgets what was to be remembered until now.
local function drop_marks(q, most)
    local k = q.k
    local members = call('ZRANGEBYSCORE', k[FORGET], '-inf', q.now, 'LIMIT', 0, most)
    for _, member in ipairs(members) do
        local sort, name = member:sub(1, 1), member:sub(2)
        call('ZREM', k[FORGET], member)
        if sort == 'g' then
            q.r[GONE] = q.r[GONE] - 1
        elseif sort == 'N' then
            local value, until_ = note_at(q, name)
            if value and until_ > 0 and until_ <= q.now then remove_note(q, name) end
        else
            local value = call('HGET', k[INDEX], member)
            if value and tonumber(value:match('^%d+')) <= q.now then call('HDEL', k[INDEX], member) end
        end
    end
    return #members == most
end

-- The schedule of this name, or of a record that was read; nil: there is none, or it is damaged.
function schedule_of(q, name, value)
    value = value or call('HGET', q.k[TICK], name)
    if not value then return nil end
    local ok, p = pcall(cmsgpack.unpack, value)
    return ok and type(p) == 'table' and type(p.last) == 'number' and type(p.skipped) == 'number' and p or nil
end

function write_schedule(q, name, p)
    call('HSET', q.k[TICK], name, cmsgpack.pack(p))
    if p.every then q.r[NEXT_TICK] = min(q.r[NEXT_TICK], p.last + p.every) end
end

-- Whether the job of the last tick has not ended.
function still_runs(q, p)
    local j = p.run and find(q, p.run)
    return j and is_live(j) or false
end

-- Pushes the job of a tick.
function push_tick(q, p, at)
    local s = settings_of(p.settings or '') or {}
    s.pushed, s.run_at = at, at
    check_job(q, p.kind, p.payload)
    local id, _, state = push_one(q, p.kind, p.payload, s, s.after or {}, false)
    tell(q, id, state)
    return id
end

-- The jobs of schedules with a fixed interval. Missed ticks make one job.
local function tick_periodic(q, most)
    if q.r[NEXT_TICK] > q.now then return false end
    local all, next_, made = call('HGETALL', q.k[TICK]), 2 * LATEST, 0
    for at = 1, #all, 2 do
        local name = all[at]
        local p = schedule_of(q, name, all[at + 1])
        if p and p.every then
            if p.last + p.every <= q.now and made < most then
                made = made + 1
                p.last = p.last + p.every * floor((q.now - p.last) / p.every)
                if still_runs(q, p) then
                    p.skipped = p.skipped + 1
                else
                    local ok, made_ = pcall(push_tick, q, p, p.last)
                    if ok then
                        p.run = made_
                    elseif type(made_) == 'table' and made_.code then
                        -- The error comes again with each tick, and every claim ticks. So the tick
                        -- is passed.
                        line(q, 'unmade', name, p.kind, 0, made_.text)
                    else
                        error(made_, 0)
                    end
                end
                write_schedule(q, name, p)
            end
            next_ = min(next_, p.last + p.every)
        end
    end
    q.r[NEXT_TICK] = next_
    return made == most
end

-- Does what is due by now. `tells`: also of jobs that are no longer kept.
function tick(q, tells)
    local r, most = q.r, 256
    local before, more = r[TICKED], false
    r[TICKED] = q.now
    if r[LATEST_SEEN] > q.now + 1000 then
        if not set_clock_back(q) then r[TICKED] = r[LATEST_SEEN] end
    else
        r[LATEST_SEEN] = max(r[LATEST_SEEN], q.now)
    end
    if r[EDGES] == 1 and call('EXISTS', q.k[BEFORE]) == 0 then r[EDGES] = 0 end
    move_due(q)
    more = end_leases(q, most) or more
    more = expire_some(q, most) or more
    more = drop_ended(q, DONE, 512, tells) or more
    more = drop_ended(q, DEAD, most, tells) or more
    more = drop_marks(q, most) or more
    if floor(before / 60000) ~= floor(q.now / 60000) then drop_workers(q) end
    more = tick_periodic(q, 64) or more
    if more and r[TICKED] == q.now then r[TICKED] = 0 end
end
