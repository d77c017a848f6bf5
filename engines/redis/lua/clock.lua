-- A clock that was set back, and the times that go back with it: what was written at a time that is
-- ahead goes back as far as the clock, so that what had a minute left still has a minute left. A
-- time that the user named stays.

-- How far a time written then goes back, if the clock went back this far.
local function shift_of(written, now, by) return written and written > now and max(by, written - now) or 0 end

local function less(time, by) return time and time - by or nil end

-- Moves the times of a job.
local function shift_job(q, j, by)
    local now, k, n = q.now, q.k, whole(j.n)
    local last = j.state == 'x' and max(j.since, j.renewed or 0, j.resubd or 0) or j.since
    -- One that was due has an entry in a lane, or in the line of its kind, and may wait again.
    local was_due = j.state == 'r' and not call('ZSCORE', k[DUE], entry_of(j))
    if last <= now and not was_due or j.at <= now or j.at >= EVER then return end
    local since, push = shift_of(j.since, now, by), shift_of(j.pushed, now, by)
    local state, at = j.state, j.at
    if state == 'r' or state == 'h' or state == 'w' then leave_line(q, j) end
    if state == 'x' then
        j.at = at - shift_of(max(j.since, j.renewed or 0), now, by)
    elseif state == 'f' or state == 'd' then
        j.at = at - since
    else
        j.at = j.named and max(j.due or 0, j.since - since) or at - since
        if not j.named then j.due = less(j.due, since) end
    end
    j.since, j.renewed = j.since - since, less(j.renewed, shift_of(j.renewed, now, by))
    if j.resubd then
        local asked = shift_of(j.resubd, now, by)
        j.resub, j.resubd = less(j.resub, asked), j.resubd - asked
    end
    if j.exp then
        if call('ZSCORE', k[EXPIRES], n) then call('ZADD', k[EXPIRES], j.exp - push, n) end
        j.exp = j.exp - push
    end
    j.pushed, j.due0, j.named0, j.given = j.pushed - push, j.due, j.named, nil
    -- What is ready then is as if it had just become so: it comes behind what was written before.
    if state == 'r' and j.at <= now then j.at, j.since = now, now end
    -- (With another place an old entry is stale.)
    if state == 'r' then j.place = j.place - 1 end
    write_job(q, j)
    write_state(q, j)
    if state == 'x' then call('ZADD', k[RUN], j.at, n)
    elseif state == 'f' then call('ZADD', k[DONE], j.at, n)
    elseif state == 'd' then call('ZADD', k[DEAD], j.at, n)
    elseif state == 'r' then
        call('ZADD', k[DUE], j.at, entry_of(j))
        q.r[NEXT_DUE] = min(q.r[NEXT_DUE], j.at)
    else
        hold(q, j, state == 'h' and j.held or 'w')
    end
end

-- Moves what is ahead, some at a time. True: nothing is left.
function set_clock_back(q)
    local k, now, r, most = q.k, q.now, q.r, 256
    local by, is_all = r[LATEST_SEEN] - now, true
    local function shift(numbers)
        for _, n in ipairs(numbers) do
            local j = load(q, tonumber(n))
            if j then shift_job(q, j, by) end
        end
    end
    -- Each scan reads all keys whose times are ahead, from where the last call has left off.
    local from = call('HGET', k[HEAD], 'back') or '0'
    local page = call('HSCAN', k[JOB], from, 'COUNT', most)
    local numbers = {}
    for at = 1, #page[2], 2 do numbers[#numbers + 1] = page[2][at] end
    shift(numbers)
    is_all = page[1] == '0'
    if not is_all then
        call('HSET', k[HEAD], 'back', page[1])
        return false
    end
    call('HDEL', k[HEAD], 'back')
    for _, member in ipairs(call('ZRANGEBYSCORE', k[FORGET], '(' .. whole(now), '+inf', 'LIMIT', 0, 10000)) do
        local sort, name, until_ = member:sub(1, 1), member:sub(2), tonumber(call('ZSCORE', k[FORGET], member))
        local life = sort == 'g' and q.o.ids_for or sort == 'e' and 86400000 or sort == 'r' and 2419200000 or nil
        if life then
            local shift_ = shift_of(until_ - life, now, by)
            if shift_ > 0 then
                call('ZADD', k[FORGET], until_ - shift_, member)
                local value = sort ~= 'g' and call('HGET', k[INDEX], member)
                if value then call('HSET', k[INDEX], member, whole(until_ - shift_) .. value:match('^%d+( .*)$')) end
            end
        elseif sort == 'w' then
            local id, to, since = mark_of(q, name)
            local shift_ = shift_of(since, now, by)
            if id and shift_ > 0 then
                remember(q, 'w', name, to - shift_, whole(to - shift_) .. ' ' .. whole(since - shift_) .. ' ' .. id)
            end
        elseif sort == 'N' then
            local value, to, since = note_at(q, name)
            local shift_ = shift_of(since, now, by)
            if value and shift_ > 0 then write_note(q, name, value, to - shift_, since - shift_) end
        end
    end
    local all = call('HGETALL', k[TICK])
    for at = 1, #all, 2 do
        local p = schedule_of(q, all[at], all[at + 1])
        if p and p.every and p.last > now + 1000 then
            p.last = now
            write_schedule(q, all[at], p)
        end
    end
    for _, name in ipairs(call('ZRANGEBYSCORE', k[REFILL], '(' .. whole(now), '+inf')) do call('ZADD', k[REFILL], now,
        name) end
    shift_workers(q, by)
    local since = rare(q, 'paused_since')
    if since > now then
        local shift_ = shift_of(since, now, by)
        set_rare(q, 'paused_since', since - shift_)
        if r[PAUSED] < 2 ^ 62 then r[PAUSED] = r[PAUSED] - shift_ end
        q.told[#q.told + 1] = { 'paused', r[PAUSED] >= 2 ^ 62 and ENDLESS or r[PAUSED] }
        note_change(q, whole(min(r[PAUSED], 2 ^ 62)), 'paused')
    end
    r[LATEST_SEEN] = now
    set_rare(q, 'back_at', now)
    set_rare(q, 'back_by', by)
    line(q, 'set_back', false, false, 0, whole(by))
    return true
end
