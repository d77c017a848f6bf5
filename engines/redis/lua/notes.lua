-- Notes: values beside the jobs, in one sorted set in the order of their places. A member is the
-- place, its end, and the note: until when it is kept (0: for ever), when it was set, and the
-- value.

local note_at, remove_note, write_note

function note_at(q, place)
    local from = line_of(place)
    local member = call('ZRANGEBYLEX', q.k[NOTE], '[' .. from, '(' .. from .. '\255', 'LIMIT', 0, 1)[1]
    if not member then return nil end
    local until_, since, value = member:sub(#from + 1):match('^(%d+) (%d+) (.*)$')
    return value, tonumber(until_), tonumber(since), member
end

function remove_note(q, place)
    local value, until_, _, member = note_at(q, place)
    if not value then return end
    call('ZREM', q.k[NOTE], member)
    if until_ > 0 then call('ZREM', q.k[FORGET], 'N' .. place) end
end

function write_note(q, place, value, until_, since)
    remove_note(q, place)
    call('ZADD', q.k[NOTE], 0, line_of(place) .. whole(until_) .. ' ' .. whole(since) .. ' ' .. value)
    if until_ > 0 then call('ZADD', q.k[FORGET], until_, 'N' .. place) end
end

-- The sum of two whole numbers of 64 bits. (A number of Lua would be rounded beyond 2^53.)
local function sum_of(q, a, b)
    local k = q.k[HEAD]
    call('HSET', k, 'sum', a)
    local sum = b:find('^-?%d+$') and a:find('^-?%d+$') and redis.pcall('HINCRBY', k, 'sum', b) or { err = '' }
    local text_ = call('HGET', k, 'sum')
    call('HDEL', k, 'sum')
    if type(sum) == 'table' then
        fail('WQ009', sum.err:find('overflow') and a .. ' and ' .. b
            .. ' are more than 64 bits: set it to another number'
            or 'the note there is no whole number of 64 bits: set it to one')
    end
    return text_
end

-- wl_note: changes a note. Arguments: place, what (set, add, keep: only its time; remove), value
-- (text), for (ms; 0: for ever). Answers one row: old_value, old_until, value, until.
define('wl_note', {}, function(q)
    local place, what, value, time = arg(q), arg(q), text(q), number(q) or 0
    check_name('the place of a note', #place <= 1024 and place:sub(1, 255) or place)
    note_time(q)
    local old, old_until, since = note_at(q, place)
    if old and old_until > 0 and old_until <= q.now then old = nil end
    if not old then old_until = nil end
    local until_ = time > 0 and q.now + bounded(time) or 0
    if what == 'set' then
        if not value then refuse('a note is set to a value, and null is none: remove it') end
        since = q.now
    elseif what == 'keep' then
        value, since = old, q.now
    elseif what == 'add' then
        value, until_, since = sum_of(q, old or '0', value or ''), old_until or 0, since or 0
    elseif what == 'remove' then
        value = nil
    else
        refuse('a note is set, add, keep or remove, and not ' .. quoted(what))
    end
    if value then write_note(q, place, value, until_, since) else remove_note(q, place) end
    return { { old or false, old_until or false, value or false, value and until_ or nil } }
end)

-- wl_notes_of: the notes whose places begin with a prefix, in order. Arguments: prefix, behind
-- (text), most. Answers rows: place, value, until.
define('wl_notes_of', { 'no-writes' }, function(q)
    local prefix, behind, most = arg(q), text(q), min(number(q) or 100, 10000)
    local plain = line_of(prefix):sub(1, -3)
    local from = behind and behind >= prefix and '(' .. line_of(behind) .. '\255' or '[' .. plain
    local rows = {}
    while #rows < most do
        local members = call('ZRANGEBYLEX', q.k[NOTE], from, plain == '' and '+' or '(' .. plain .. '\255\255',
            'LIMIT', 0, 100)
        for _, member in ipairs(members) do
            local line_ = member:match('^(.-%z\1)')
            local until_, value = member:sub(#line_ + 1):match('^(%d+) %d+ (.*)$')
            until_ = tonumber(until_)
            local place = line_:sub(1, -3):gsub('%z\255', '\0')
            if (until_ == 0 or until_ > q.now) and #rows < most then rows[#rows + 1] = { place, value, until_ } end
        end
        if #members < 100 then break end
        from = '(' .. members[#members]
    end
    return rows
end)
