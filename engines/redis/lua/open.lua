-- Queues: how one is made, changed and removed, and what a connection says first.

local VERSION, SERVES = 1, 1

-- wl_version: the version of these functions, and the oldest version of a program that they serve.
-- It needs no keys.
redis.register_function({ function_name = 'wl_version', flags = { 'no-writes' },
    callback = function() return { VERSION, SERVES } end })

local function revision_of(raw) return tonumber(redis.sha1hex(raw):sub(1, 12), 16) end

local function set_options(q, value, is_new)
    local k, r = q.k, q.r
    local stored = call('HMGET', k[HEAD], 'given', 'options')
    if stored[1] == value then return end
    local old = cmsgpack.unpack(stored[2])
    local limits = cmsgpack.pack(old.limits)
    local changed = changed_options(old, value)
    local raw = cmsgpack.pack(changed)
    call('HSET', k[HEAD], 'given', value, 'options', raw)
    r[REVISION] = revision_of(raw)
    q.o = options_of(raw)
    if is_new or cmsgpack.pack(changed.limits) == limits then return end
    -- Held jobs are checked again, and those that run are counted.
    r[WALK] = 1
    call('HDEL', k[HEAD], 'walk')
    if q.o.limited then count_running(q) end
    q.ready = q.ready + 1
end

-- What the functions call on the keys of a queue. Redis undoes nothing, so a user who may not call
-- one of these would leave half of a change behind: the first call of a connection refuses it.
local NEEDS = {
    { 'HSET', 'x', 'x' }, { 'HDEL', 'x' }, { 'HGET', 'x' }, { 'HMGET', 'x' }, { 'HGETALL' }, { 'HEXISTS', 'x' }, { 'HLEN' },
    { 'HINCRBY', 'x', 1 }, { 'HSCAN', 0 }, { 'RPUSH', 'x' }, { 'RPOP' }, { 'LPOP' }, { 'LTRIM', 0, 0 }, { 'LRANGE', 0, 0 },
    { 'LINDEX', 0 }, { 'LLEN' }, { 'ZADD', 0, 'x' }, { 'ZREM', 'x' }, { 'ZSCORE', 'x' }, { 'ZCARD' }, { 'ZCOUNT', 0, 0 },
    { 'ZLEXCOUNT', '-', '+' }, { 'ZRANGE', 0, 0 }, { 'ZREVRANGE', 0, 0 }, { 'ZRANGEBYSCORE', 0, 0 },
    { 'ZRANGEBYLEX', '-', '+' }, { 'ZREVRANGEBYLEX', '+', '-' }, { 'EXISTS' },
}

local function check_rights(q)
    for _, one in ipairs(NEEDS) do
        if not redis.acl_check_cmd(one[1], q.k[HEAD], unpack(one, 2)) then
            fail('NOPERM', 'this user may not call ' .. one[1] .. ' on the keys of the queue')
        end
    end
    if not redis.acl_check_cmd('SPUBLISH', channel(q, 'bell'), '') then
        fail('NOPERM', 'this user may not publish on the channels of the queue')
    end
end

-- wl_open: makes a queue, if it is not there. Arguments: name, options (text: JSON; a member that
-- is missing stays as it is), run_id of the server (text; see `wl_greet`). Answers 1 if the queue
-- is new.
define('wl_open', {}, function(q)
    local name, options, run = arg(q), text(q), text(q)
    check_name('the name of a queue', name)
    check_rights(q)
    local is_new = not q.r
    if is_new then
        local old = { lease = 60000, keep = 60000, dead_for = 604800000, ids_for = 2419200000, max_crashes = 5,
            max_payload = 16777216,
            limits = {}, retry = { first_ms = 1000, growth = 'doubling', cap_ms = 3600000, attempts = 10,
                jitter = 0.2 } }
        -- Checked before anything is written.
        local raw = cmsgpack.pack(options and changed_options(old, options) or old)
        q.r = { 10 ^ 15, 0, 0, 0, 0, 2 * LATEST, 0, 0, 0, 0, 0, 2 * LATEST, 0, 0, 0, 0, revision_of(raw) }
        call('HSET', q.k[HEAD], 'name', name, 'options', raw, 'given', options or '', 'run', run or '')
    elseif name_of(q) ~= name then
        refuse('these are the keys of the queue ' .. quoted(name_of(q)) .. ', and not of ' .. quoted(name))
    elseif options then
        set_options(q, options)
    end
    q.name = name
    return is_new and 1 or 0
end, false, true)

-- wl_set_options: changes the options of a queue. Arguments: options (JSON).
define('wl_set_options', {}, function(q)
    set_options(q, arg(q))
    return true
end)

-- wl_greet: each new connection says which server it has reached. After another one the numbers of
-- the queue move on by a minute, since its clock may lag behind, and a number may have been lost.
-- Arguments: run_id of the server. Answers the time of the server.
define('wl_greet', { 'allow-oom' }, function(q)
    local run = arg(q)
    check_rights(q)
    if call('HGET', q.k[HEAD], 'run') ~= run then
        q.r[LAST] = max(q.r[LAST], q.us) + 60000000
        call('HSET', q.k[HEAD], 'run', run)
    end
    return q.now
end)

-- wl_remove_queue: removes a queue with all that belongs to it. It is refused while a worker was
-- heard of within a lease. Arguments: dry (flag: it only counts). Answers one row: the number of
-- its jobs, and 0: there is nothing more to remove.
define('wl_remove_queue', { 'allow-oom' }, function(q)
    local k, now, dry = q.k, q.now, flag(q)
    local jobs, heard = call('HLEN', k[JOB]), q.r[TICKED]
    local last = call('ZREVRANGE', k[RUN], 0, 0, 'WITHSCORES')[2]
    if last then heard = max(heard, min(tonumber(last), now)) end
    -- A tick that has more to do has no time: then it is that of the latest time that was seen.
    if heard == 0 and q.r[TICKED] == 0 and q.r[CLAIMS] > 0 then heard = q.r[LATEST_SEEN] end
    if now - heard < q.o.lease then
        fail('WQ011', 'the queue has workers: one was heard of ' .. shown_time(max(now - heard, 0))
            .. ' ago; stop them, and call it again when none was heard of for '
            .. shown_time(q.o.lease), name_of(q))
    end
    if not dry then
        call('UNLINK', unpack(k))
        q.r = false
    end
    return { { jobs, 0 } }
end)
