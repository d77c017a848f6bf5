-- The workers of a queue, as they were last heard of. Each one is noted with the calls that it
-- makes anyway, once in a third of a lease. No rule of the queue reads what is noted: it is only
-- shown. `seen` has `w` and a worker's number.

local note_workers, drop_workers, shift_workers, some_worker, add_untaken

local WORKER = set_of('number process host language version stuck queue name kinds slots stopping')

local function small(value) return type(value) == 'number' and value >= 0 and value < 1e9 and floor(value) or nil end

local function short(value) return type(value) == 'string' and value:sub(1, 255) or nil end

local function same_kinds(a, b) return a == b or a and b and same(a, b) end

-- Notes one worker: at most once in a second and in a third of a lease, but the beginning of its
-- stop at once.
local function note_worker(q, name, about, kinds, slots, stops)
    local k, now = q.k[SEEN], q.now
    local number_ = type(about.number) == 'number' and whole(about.number) or 'n' .. (name or '')
    local value = call('HGET', k, 'w' .. number_)
    local ok, old = pcall(cmsgpack.unpack, value or '')
    if not ok or type(old) ~= 'table' or type(old.seen) ~= 'number' or type(old.began) ~= 'number' then old = nil end
    stops = stops or false
    if kinds and #kinds > 256 then kinds = nil end
    if old and old.seen <= now then
        if (old.stops or not stops) and old.seen > now - 1000 then return end
        if old.stops == stops and old.seen > now - q.o.lease / 3 and old.slots == slots and same_kinds(old.kinds,
            kinds) then return end
    end
    check_members('a worker', about, 'number, process, host, language, version, ...', WORKER)
    local began = not old and now or old.stops and not stops and now or min(old.began, now)
    q.workers = false
    call('HSET', k, 'w' .. number_, cmsgpack.pack({ name = short(name), process = small(about.process),
        host = short(about.host),
        language = short(about.language), version = short(about.version), kinds = kinds, slots = slots,
            stuck = small(about.stuck) or 0,
        began = began, seen = now, stops = stops }))
end

-- The same for a list of {queue, name, kinds, slots, stopping} and what `about` has. Only those of
-- this queue count. What a worker says of itself does not cost it its leases and ends, so faults in
-- it are passed over, and so are more than 256 kB, which would take long to read.
function note_workers(q, value)
    if not value or #value > 262144 then return end
    local ok, list = pcall(cjson.decode, value)
    if not ok or type(list) ~= 'table' then return end
    for at = 1, min(#list, 256) do
        local one = list[at]
        if type(one) == 'table' and (one.queue == nil or one.queue == cjson.null or one.queue == name_of(q)) then
            for name, own in pairs(one) do
                if own == cjson.null then one[name] = nil end
            end
            local kinds = type(one.kinds) == 'table' and one.kinds or nil
            pcall(note_worker, q, short(one.name), one, kinds, small(one.slots), one.stopping == true)
        end
    end
end

local function all_workers(q)
    if q.workers then return q.workers end
    local all, workers = call('HGETALL', q.k[SEEN]), {}
    for at = 1, #all, 2 do
        if all[at]:byte() == 119 then
            -- (One whose record is damaged is not shown: the next report writes it anew.)
            local ok, w = pcall(cmsgpack.unpack, all[at + 1])
            if ok and type(w) == 'table' and type(w.seen) == 'number' and type(w.began) == 'number' then
                w.field, w.name = all[at], w.name or ''
                workers[#workers + 1] = w
            end
        end
    end
    q.workers = workers
    return workers
end

-- Deletes the workers that were not heard of for a day, or have stopped.
function drop_workers(q)
    local day = 86400000
    for _, w in ipairs(all_workers(q)) do
        if w.seen < q.now - day or w.stops and w.seen < q.now - min(q.o.lease, day - 60000) - 60000
            or w.seen > q.now + day then
            call('HDEL', q.k[SEEN], w.field)
        end
    end
    -- And the changes, once no caller watches them any more.
    if q.r[WATCHED] > 0 and q.r[WATCHED] <= q.real then
        q.r[WATCHED] = 0
        for from = 0, 4095, 1024 do
            local fields = {}
            for at = 1, 1024 do fields[at] = 'c' .. from + at - 1 end
            call('HDEL', q.k[SHOWN], unpack(fields))
        end
    end
end

function shift_workers(q, by)
    for _, w in ipairs(all_workers(q)) do
        if w.seen > q.now then
            local field = w.field
            w.seen, w.began = w.seen - max(by, w.seen - q.now), w.began - (w.began > q.now and max(by,
                w.began - q.now) or 0)
            w.field = nil
            call('HSET', q.k[SEEN], field, cmsgpack.pack(w))
        end
    end
    q.workers = false
end

-- Whether a worker of those heard of within a lease, which does not stop, is like this.
function some_worker(q, is)
    for _, w in ipairs(all_workers(q)) do
        if not w.stops and w.seen > q.now - q.o.lease and is(w) then return true end
    end
    return false
end

-- Up to two of the kinds that have jobs in lines and that no worker takes: the caller names them in
-- its log.
function add_untaken(q, rows)
    local names, added = names_of_lines(q, 'o', 64), 0
    for at = 1, #names do
        local kind = names[(at + q.us) % #names + 1]:sub(2)
        local takes = some_worker(q, function(w)
            local takes_all = w.kinds == nil
            for _, own in ipairs(w.kinds or {}) do takes_all = takes_all or own == kind end
            return takes_all
        end)
        if not takes and #kind <= 64 and added < 2 then
            rows[#rows + 1] = { 'lined', false, false, false, false, false, kind }
            added = added + 1
        end
    end
end

-- The worker of this name that was there when a job began; the first one, if none was.
local function owner_of(of, since)
    local best = of[1]
    for _, g in ipairs(of) do
        if g.began <= since then best = g end
    end
    return best
end

-- The running jobs, by their workers.
local function add_running(q, groups, most)
    for _, n in ipairs(call('ZRANGE', q.k[RUN], 0, 9999)) do
        local j = load(q, tonumber(n))
        if j then
            local name = j.worker or ''
            groups[name] = groups[name] or { { name = name, jobs = {} } }
            local since = min(j.since, q.now)
            local g = groups[name][1].began and owner_of(groups[name], since) or groups[name][1]
            g.jobs[#g.jobs + 1] = { since, j.n, { id = id_of(j), kind = j.kind, ran = q.now - since } }
            local heard = min(max(j.since, j.renewed or 0), q.now)
            g.heard, g.until_, g.first = max(g.heard or 0, heard), max(g.until_ or 0, j.at), min(g.first or since,
                since)
            g.newest = max(g.newest or 0, since)
            if not j.silent then g.lease = max(g.lease or 0, j.at - heard) end
            g.stops, g.alone = g.stops or j.stopping, g.alone or j.suspect
        end
    end
end

-- wl_workers_of: the workers, those first that are heard of. Arguments: how many jobs of each are
-- shown. Answers rows: name, process, host, language, version, kinds (a list), slots, busy, began,
-- silent_for, silent, stopping, newest_ran, lease_left, jobs (JSON: a list of {id, kind, ran}). A
-- flag is 1 or 0.
define('wl_workers_of', { 'no-writes' }, function(q)
    local most, groups, rows = number(q) or 64, {}, {}
    local known_ = all_workers(q)
    table.sort(known_, function(a, b) return a.began < b.began end)
    for _, w in ipairs(known_) do
        groups[w.name] = groups[w.name] or {}
        w.jobs, w.began, w.seen = {}, min(w.began, q.now), min(w.seen, q.now)
        table.insert(groups[w.name], w)
    end
    add_running(q, groups)
    for _, of in pairs(groups) do
        for _, g in ipairs(of) do
            local busy = #g.jobs
            if not (g.seen and g.stops and busy == 0) then
                table.sort(g.jobs, function(a, b) return a[1] < b[1] or a[1] == b[1] and a[2] < b[2] end)
                local shown = {}
                for at = 1, min(busy, most) do shown[at] = cjson.encode(g.jobs[at][3]) end
                local silent_for = q.now - max(g.seen or 0, g.heard or 0)
                local patience = g.lease and g.lease * 2 / 3 or max(q.o.lease * 2 / 3, 3000)
                local slots = g.slots or false
                rows[#rows + 1] = { g.name ~= '' and g.name or false, g.process or false, g.host or false, g.language
                    or false,
                    g.version or false, g.kinds or false, slots, g.alone and max(slots or 0, busy) or busy + (g.stuck
                        or 0),
                    min(g.began or g.first, g.first or g.began), silent_for, silent_for > patience and 1 or 0, g.stops
                        and 1 or 0,
                    g.newest and q.now - g.newest or false, busy > 0 and max(g.until_ - q.now, 0) or false,
                    '[' .. table.concat(shown, ',') .. ']' }
            end
        end
    end
    table.sort(rows, function(a, b)
        if a[11] ~= b[11] then return a[11] < b[11] end
        if (a[1] or '') ~= (b[1] or '') then return (a[1] or '') < (b[1] or '') end
        return a[9] < b[9]
    end)
    for at = #rows, 257, -1 do rows[at] = nil end
    return rows
end)

-- wl_set_average: notes how long the runs of a kind take. Arguments: kind, count, mean, last (ns).
define('wl_set_average', {}, function(q)
    local kind, count_, mean, last = arg(q), arg(q), arg(q), arg(q)
    call('HSET', q.k[SEEN], 'a' .. kind, count_ .. ' ' .. mean .. ' ' .. last)
    return true
end)

-- wl_averages_of: rows: kind, count, mean, last.
define('wl_averages_of', { 'no-writes' }, function(q)
    local all, rows = call('HGETALL', q.k[SEEN]), {}
    for at = 1, #all, 2 do
        if all[at]:byte() == 97 then
            local count_, mean, last = all[at + 1]:match('^(%d+) (%d+) (%d+)$')
            rows[#rows + 1] = { all[at]:sub(2), tonumber(count_), tonumber(mean), tonumber(last) }
        end
    end
    return rows
end)
