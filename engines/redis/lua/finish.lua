-- An end with writes of the caller's own, to keys beside the queue: all of it is made, or nothing.
--
-- Since Redis undoes nothing, each write is checked before the first one is made: that the caller
-- has the right to it, and that its key has the type that it needs, and a number that it can be
-- added to, also after the writes before it.

-- How many arguments each write has, of which the first one is its key. (A channel is none.)
-- Behind that, the type of key that some of them need, or make.
local WRITES = { SET = { 2 }, INCRBY = { 2, 'string' }, UNLINK = { 1 }, PEXPIRE = { 2 }, HSET = { 3, 'hash' },
    HDEL = { 2, 'hash' }, RPUSH = { 2, 'list' }, LPUSH = { 2, 'list' }, SADD = { 2, 'set' }, SREM = { 2, 'set' },
    ZADD = { 3, 'zset' }, ZREM = { 2, 'zset' }, PUBLISH = { 2 } }

-- Refuses a write: `fault` is bounds, queue, right, type or number.
local function refuse_write(at, w, fault, why)
    fail('WQ013', 'write ' .. at .. ', ' .. w[1] .. ' ' .. quoted(w[2]:sub(1, 255)) .. ', is refused: ' .. why, whole(at), fault)
end

local function check_right(at, w, ...)
    if redis.acl_check_cmd(...) then return end
    refuse_write(at, w, 'right', 'the user has no right to ' .. (...) .. ' there: give it by ACL SETUSER')
end

-- A whole number of 64 bits: how often 10^9 goes into it, and the rest, since Lua has only 53 bits;
-- null: it has more.
local function sum_of(high, low)
    high, low = high + floor(low / 1e9), low % 1e9
    if high > 9223372036 or high == 9223372036 and low > 854775807 then return nil end
    if high < -9223372037 or high == -9223372037 and low < 145224192 then return nil end
    return { high, low }
end

-- Reads one as Redis does; null: the text is none.
local function whole_of(text_)
    if #text_ > 20 or text_ ~= '0' and not text_:find('^-?[1-9]%d*$') then return nil end
    local sign, digits = 1, text_
    if text_:byte() == 45 then sign, digits = -1, text_:sub(2) end
    return sum_of(sign * (tonumber(digits:sub(1, -10)) or 0), sign * tonumber(digits:sub(-9)))
end

-- Whether Redis takes it as the score of a member.
local function is_score(text_)
    if #text_ > 400 or text_:find('^-?inf$') then return #text_ <= 400 end
    local digits = text_:match('^-?(%d+%.?%d*)$') or text_:match('^-?(%d+%.?%d*)e[+-]?%d+$')
    local score = digits and tonumber(text_)
    return score and math.abs(score) < math.huge and (score ~= 0 or not digits:find('[1-9]')) or false
end

-- Reads the writes: each has its name, and its arguments.
local function read_writes(q, own)
    local writes, next_key = {}, 1
    for at = 1, count(q, 1000) or 0 do
        local w = { arg(q) }
        local length = WRITES[w[1]] and WRITES[w[1]][1]
        if not length then refuse('there is no write ' .. quoted(w[1]:sub(1, 60)) .. ': see `finish.lua` for those that there are') end
        for n = 1, length do w[n + 1] = arg(q) end
        if w[1] ~= 'PUBLISH' then
            if own[next_key] ~= w[2] then refuse('the keys of the writes, in their order, follow the keys of the queues') end
            next_key = next_key + 1
        end
        writes[at] = w
    end
    if #own >= next_key then refuse('there are ' .. #own .. ' keys of writes, and ' .. (next_key - 1) .. ' writes that have one') end
    return writes
end

-- Checks that the sum of the number at a key and this one has 64 bits.
local function check_number(at, w, s)
    if not s.number then
        if s.text == nil then
            check_right(at, w, 'GETRANGE', w[2], 0, 20)
            s.text = call('GETRANGE', w[2], 0, 20)
        end
        s.number = whole_of(s.text)
        if not s.number then refuse_write(at, w, 'number', 'its key has no whole number of 64 bits') end
    end
    local by = whole_of(w[3])
    if not by then refuse_write(at, w, 'number', quoted(w[3]:sub(1, 60)) .. ' is no whole number of 64 bits') end
    s.number = sum_of(s.number[1] + by[1], s.number[2] + by[2])
    if not s.number then refuse_write(at, w, 'number', 'the sum would have more than 64 bits') end
end

-- Checks a write, and notes in `s` what it makes of its key: its type, and its text or number, if
-- they are known.
local function check_write(at, w, s)
    local name = w[1]
    if name == 'PEXPIRE' then
        local time = tonumber(w[3])
        if not w[3]:find('^[1-9]%d*$') or time > 2 ^ 53 then refuse_write(at, w, 'number', 'a key expires after 1 to 2^53 milliseconds') end
    elseif name == 'ZADD' and not is_score(w[3]) then
        refuse_write(at, w, 'number', quoted(w[3]:sub(1, 60)) .. ' is no score')
    end
    if name == 'SET' then
        s.type, s.text, s.number = 'string', w[3], nil
    elseif name == 'UNLINK' then
        s.type, s.text, s.number = 'none', '0', nil
    elseif WRITES[name][2] then
        if s.type == 'none' and not name:find('REM') and name ~= 'HDEL' then s.type = WRITES[name][2] end
        if s.type ~= WRITES[name][2] and s.type ~= 'none' then
            refuse_write(at, w, 'type', 'its key is a ' .. s.type .. ', and it needs a ' .. WRITES[name][2])
        end
        if name == 'INCRBY' then check_number(at, w, s) end
    end
end

local function check_writes(queues, writes)
    local bytes, keys = 0, {}
    for _, q in ipairs(queues) do keys[#keys + 1] = q.k[HEAD]:match('^[^{]*{') end
    for at = 1, #queues[1].args do bytes = bytes + #queues[1].args[at] end
    if bytes > 67108864 then fail('WQ013', 'an end has 64 MiB at most, and not ' .. bytes .. ' bytes', '0', 'bounds') end
    local states = {}
    for at, w in ipairs(writes) do
        check_right(at, w, unpack(w))
        if w[1] ~= 'PUBLISH' then
            for _, begin in ipairs(keys) do
                if w[2]:sub(1, #begin) == begin then
                    refuse_write(at, w, 'queue', 'keys that begin with ' .. quoted(begin) .. ' are those of queues')
                end
            end
            local s = states[w[2]]
            if not s then
                check_right(at, w, 'TYPE', w[2])
                local type_ = call('TYPE', w[2]).ok
                s = { type = type_, text = type_ == 'none' and '0' or nil }
                states[w[2]] = s
            end
            check_write(at, w, s)
        end
    end
end

-- Reads the jobs to push: each has its queue.
local function read_pushes(q, queues)
    local pushes = {}
    for at = 1, count(q, 1000) or 0 do
        local of, kind, payload, settings = queues[number(q) or 0], arg(q), arg(q), arg(q)
        if not of then refuse('a push names its queue by its place among those of the call') end
        queues.fault = of
        check_job(of, kind, payload)
        pushes[at] = { of, kind, payload, settings_of(settings) or {} }
    end
    queues.fault = nil
    return pushes
end

-- Pushes the jobs. If one is refused, the others are undone.
local function push_them(queues, pushes, rows)
    for _, push in ipairs(pushes) do
        local q = push[1]
        queues.fault = q
        if not q.log then
            q.log = {}
            note_time(q)
            move_due(q)
        end
        local id, outcome, state = push_one(q, push[2], push[3], push[4], push[4].after or {}, true)
        table.insert(rows[q], { 'pushed', false, id, outcome, state })
    end
    queues.fault = nil
    for _, q in ipairs(queues) do q.log = false end
end

-- wl_finish_with: ends a job with success, together with pushes and with writes to keys of the
-- caller's; all of it or nothing. Keys: those of its queue, of each other queue of a push, and then
-- that of each write, in their order. Arguments: the number of queues, number, token, data (text),
-- a list of pushes: {place of the queue, kind, payload, settings (JSON, or empty)}, and a list of
-- writes: {name, key, its other arguments}. Names: SET (value), INCRBY (number), UNLINK, PEXPIRE
-- (ms), HSET (field, value), HDEL (field), RPUSH, LPUSH, SADD, SREM (element), ZADD (score,
-- member), ZREM (member), and PUBLISH (channel, message), which has no key. A key keeps its type
-- within a call, unless SET or UNLINK change it. Answers for each queue its rows of `wl_push`, and
-- a row `next`; those of the first one have the end, as `wl_turn` says. Errors: WQ007 if the lease
-- has ended, and WQ013 for a write, with its place, and as a hint why: bounds, queue, right, type
-- or number.
define('wl_finish_with', {}, function(first, queues, keys)
    number(first)
    local n, token, data = number(first), number(first), text(first)
    local j = load_part(first, n or 0)
    if not j or j.state ~= 'x' or j.place ~= token then fail('WQ007', 'the lease has ended', whole(n or 0)) end
    if data then check_size('the data of a job', data, first.o.max_payload) end
    local rows, own, seen = {}, {}, {}
    for _, q in ipairs(queues) do
        if seen[q.k[HEAD]] then refuse('a queue is named twice') end
        seen[q.k[HEAD]], rows[q] = true, {}
    end
    for at = 26 * #queues + 1, #keys do own[#own + 1] = keys[at] end
    local pushes = read_pushes(first, queues)
    local writes = read_writes(first, own)
    check_writes(queues, writes)
    push_them(queues, pushes, rows)
    end_many(first, { { whole(n), token, 'finished', nil, nil, data } }, rows[first])
    if first.r[ENDINGS] > 0 then resolve(first) end
    for _, w in ipairs(writes) do call(unpack(w)) end
    local answer = {}
    for _, q in ipairs(queues) do
        for _, row in ipairs(add_told(q, rows[q])) do answer[#answer + 1] = row end
        answer[#answer + 1] = { 'next' }
    end
    return answer
end, 'first')
