-- What a caller may say about a job or a queue. A misspelt word is refused: otherwise it would be a
-- limit that is not kept, or a retry that never comes.

local set_of, json_of, check_members, check_name, check_size, settings_of, check_job, changed_options, TILL

function set_of(names)
    local set = {}
    for name in names:gmatch('[%w_]+') do set[name] = true end
    return set
end

-- A JSON value, with nil for null at its first level.
function json_of(of, value)
    local ok, object = pcall(cjson.decode, value)
    if not ok then refuse(of .. ' is no JSON: ' .. quoted(value:sub(1, 100))) end
    return object
end

function check_members(of, object, names, known_)
    if type(object) ~= 'table' or object[1] ~= nil then refuse(of .. ' is a JSON object, and not '
        .. quoted(object)) end
    for name, value in pairs(object) do
        if not known_[name] then refuse(of .. ' has ' .. names .. ', and not ' .. quoted(tostring(name))) end
        if value == cjson.null then object[name] = nil end
    end
    return object
end

-- Names that callers give have 1 to 255 bytes.
function check_name(of, name)
    if name == nil then return end
    if type(name) ~= 'string' or #name < 1 or #name > 255 then
        refuse(of .. ' has 1 to 255 bytes, and not ' .. (type(name) == 'string' and #name or quoted(name)))
    end
end

-- A number within bounds (whole, unless it may have `parts`).
local function check_number(of, value, from, to, parts)
    if value == nil then return nil end
    if type(value) ~= 'number' or value ~= value or value < from or value > to or not parts
        and floor(value) ~= value then
        refuse(of .. (parts and ' is a number from ' or ' is a whole number from ') .. format('%.0f', from)
            .. (to >= 2 ^ 53 and ' on' or ' to ' .. format('%.0f', to)) .. ', and not ' .. quoted(value))
    end
    return min(value, LATEST)
end

function check_size(of, value, most)
    if #value > most then
        fail('WQ012', of .. ' has ' .. #value .. ' bytes, and its queue takes ' .. most .. ' at most', whole(#value),
            whole(most))
    end
end

local RETRY, GROWTHS = set_of('first_ms growth factor cap_ms attempts jitter'),
    set_of('fixed doubling factor quadratic')

local function check_retry(retry)
    if retry == nil then return nil end
    check_members('a retry', retry, 'first_ms, growth, factor, cap_ms, attempts, jitter', RETRY)
    if retry.growth ~= nil and not GROWTHS[retry.growth] then
        refuse('a retry grows fixed, doubling, factor or quadratic, and not ' .. quoted(retry.growth))
    end
    check_number('the jitter of a retry', retry.jitter, 0, 1, true)
    check_number('the attempts of a retry', retry.attempts, 1, math.huge)
    for _, name in ipairs({ 'first_ms', 'cap_ms', 'factor' }) do check_number('`' .. name .. '` of a retry',
        retry[name], 0, math.huge, true) end
    return retry
end

local JOB_MEMBERS = 'id, delay_ms, run_at, priority, key, cost, retry, retention_ms, unique, skip, '
    .. 'root, expires_ms, after, on_dead, meta'
local JOB_SET = set_of(JOB_MEMBERS .. ', pushed')
local UNIQUE = set_of('fingerprint until within_ms clash')
TILL = { claimed = 'c', done = 'd', within = 'w' }
local CLASHES, ON_DEAD, ROOT = set_of('keep replace earliest'), set_of('die run hold'), set_of('signature at leaf')

-- The settings of a job, checked; null: it has none.
function settings_of(value)
    if value == '' then return nil end
    local s = check_members('an object of settings', json_of('an object of settings', value), JOB_MEMBERS, JOB_SET)
    if s.id ~= nil then
        check_name('the id of a job', s.id)
        if s.id:byte() == 126 then refuse('the id ' .. quoted(s.id)
            .. ' begins with `~`, as those that the queue makes: use another one, or none') end
    end
    check_name('the key of a job', s.key)
    check_name('a fingerprint', s.skip)
    check_retry(s.retry)
    local u, root = s.unique, s.root
    if u ~= nil then
        check_members('`unique`', u, 'fingerprint, until, within_ms, clash', UNIQUE)
        check_name('a fingerprint', u.fingerprint)
        if s.skip and s.skip ~= u.fingerprint then
            refuse('a job has one fingerprint: `skip` and that of `unique` are the same')
        end
        if not u.fingerprint or not TILL[u['until']] then
            refuse('a unique job has a fingerprint, and is unique until "claimed", "done" or "within"')
        end
        check_number('`within_ms`', u.within_ms, 0, math.huge)
        if u['until'] == 'within'
            and not u.within_ms then refuse('a job that is unique "within" a time has `within_ms`, of 0 or more') end
        if u.clash ~= nil and not CLASHES[u.clash] then
            refuse('a push that finds a twin may keep, replace or earliest, and not ' .. quoted(u.clash))
        end
    end
    if root ~= nil then
        check_members('`root`', root, 'signature, at, leaf', ROOT)
        if not root.signature or not root.at then refuse('a root has a `signature`, and a time: `at`') end
        check_name('the signature of a root', root.signature)
        root.at = check_number('the time of a root', root.at, 0, math.huge)
    end
    check_number('a priority, from urgent to low,', s.priority, 0, 3)
    check_number('the cost of a job', s.cost, 1, 2147483647)
    for _, name in ipairs({ 'delay_ms', 'run_at', 'expires_ms', 'pushed' }) do s[name] = check_number('`' .. name
        .. '`', s[name], 0, math.huge) end
    s.retention_ms = check_number('`retention_ms` (-1: for ever)', s.retention_ms, -1, math.huge)
    if s.on_dead ~= nil and not ON_DEAD[s.on_dead] then
        refuse('a job whose forerunner is dead may die, run or hold, and not ' .. quoted(s.on_dead))
    end
    if s.after ~= nil then
        if type(s.after) ~= 'table' then refuse('`after` is a list of ids') end
        for at, id in pairs(s.after) do
            if type(at) ~= 'number' or type(id) ~= 'string' then refuse('`after` is a list of ids') end
        end
    end
    if s.meta ~= nil then
        local ok, object = pcall(cjson.decode, s.meta)
        if not ok or type(object) ~= 'table' or s.meta:find('^%s*%[') then
            refuse('`meta` is the text of a JSON object')
        end
        if #s.meta > 65536 then fail('WQ008', 'the metadata of a job would have more than 64 kB', whole(#s.meta)) end
    end
    return s
end

function check_job(q, kind, payload)
    check_name('the kind of a job', kind)
    check_size('the payload of a job', payload, q.o.max_payload)
end

-- Options of a queue.

local OPTION_NAMES = 'lease_ms, retry, max_crashes, retention_ms, dead_for_ms, ids_for_ms, '
    .. 'heal_after_ms, max_waiting, max_payload, limits'
local OPTIONS, LIMIT, RATE, OF = set_of(OPTION_NAMES), set_of('of name at_once rate'), set_of('count per_ns burst'),
    { queue = 'q', each_key = 'e', kind = 't', key = 'k' }

-- The limits of a list, by their names: q (the queue), t and a kind, k and a key, e (each key that
-- has none of its own).
local function limits_of(list)
    if type(list) ~= 'table' then refuse('`limits` is a list; an empty one is no limit') end
    local limits = {}
    for _, limit in ipairs(list) do
        check_members('a limit', limit, 'of, name, at_once, rate', LIMIT)
        local of = OF[limit.of]
        if not of then refuse('a limit is `of` queue, each_key, kind or key, and not ' .. quoted(limit)) end
        if (limit.name == nil) == (of == 't' or of == 'k') then
            refuse('a limit of a kind or a key has its `name`, and no other one has a name: ' .. quoted(limit))
        end
        check_name('the name of a limit', limit.name)
        if limit.at_once == nil and limit.rate == nil then refuse('a limit has `at_once`, `rate` or both: '
            .. quoted(limit)) end
        local name, rate = of .. (limit.name or ''), limit.rate
        if limits[name] then refuse('two limits are of the same: ' .. quoted(limit)) end
        limits[name] = { at_once = check_number('`at_once`', limit.at_once, 1, 2147483647) }
        if rate ~= nil then
            check_members('a rate', rate, 'count, per_ns, burst', RATE)
            if not rate.count or not rate.per_ns then refuse('a rate is a `count` in `per_ns` nanoseconds: '
                .. quoted(rate)) end
            limits[name].count = check_number('the count of a rate', rate.count, 1, 2147483647)
            limits[name].per = check_number('`per_ns`', rate.per_ns, 1, 1e30)
            limits[name].burst = check_number('the burst of a rate', rate.burst, 1, 2147483647) or rate.count
        end
    end
    return limits
end

-- Changes options as they are stored by those that are given.
function changed_options(old, value)
    local new = check_members('an object of options', json_of('an object of options', value), OPTION_NAMES, OPTIONS)
    -- A null that means something, where others mean that nothing is said.
    local given = cjson.decode(value)
    check_retry(new.retry)
    local numbers = { lease_ms = { 'lease', 1 }, retention_ms = { 'keep', -1 }, dead_for_ms = { 'dead_for', -1 },
        ids_for_ms = { 'ids_for', 0 },
        max_payload = { 'max_payload', 1, 268435456 } }
    for name, own in pairs(numbers) do
        old[own[1]] = check_number('`' .. name .. '`', new[name], own[2], own[3] or math.huge) or old[own[1]]
    end
    for name, own in pairs({ max_crashes = 1, heal_after_ms = 0, max_waiting = 1 }) do
        local number_ = check_number('`' .. name .. '`', new[name], own, math.huge)
        if given[name] ~= nil then old[name] = number_ end
    end
    old.retry = new.retry or old.retry
    if new.limits then old.limits = limits_of(new.limits) end
    return old
end

local function divisor(a, b)
    while b > 0 do a, b = b, a % b end
    return a
end

-- Stored options with what follows from them.
options_of = function(raw)
    local o = cmsgpack.unpack(raw)
    o.limited = next(o.limits) ~= nil
    for name, limit in pairs(o.limits) do
        local letter = name:sub(1, 1)
        o[letter .. '_limits'] = true
        if limit.at_once and letter == 't' then o.counts_kinds = true end
        if limit.count then
            o.rates = true
            -- A token, and what a millisecond brings, in the largest parts of which both are whole
            -- numbers.
            local part = divisor(limit.per, limit.count * 1000000)
            limit.unit, limit.gain = limit.per / part, limit.count * 1000000 / part
        end
    end
    return o
end
