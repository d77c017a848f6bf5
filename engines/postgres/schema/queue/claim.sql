-- Claims: the jobs that may run now, in their order.

-- What only few jobs have, as text for the worker that claimed one. (This and `fits` are not in the SQL language:
-- inlined, each of their expressions would be prepared for each claim.)
CREATE FUNCTION more_of(p_key text, p_resubmit bigint, p_root text, p_root_at bigint, p_cost int, p_meta text, p_noted bigint)
RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(p_key, p_root, p_meta) IS NULL AND p_cost = 1 AND coalesce(p_resubmit, p_noted) IS NULL THEN RETURN NULL; END IF;
    -- Mostly it is a key alone. This makes the same text, faster.
    IF coalesce(p_root, p_meta) IS NULL AND p_cost = 1 AND coalesce(p_resubmit, p_root_at, p_noted) IS NULL THEN
        RETURN '{"key":' || to_json(p_key) || '}';
    END IF;
    RETURN json_strip_nulls(json_build_object('key', p_key, 'resubmit', p_resubmit, 'root', p_root, 'root_at', p_root_at,
        'cost', nullif(p_cost, 1), 'meta', nullif(p_meta IS NOT NULL, false), 'progress', nullif(p_noted IS NOT NULL, false)));
END $$;

-- Whether the values of a job fit into `p_room` bytes of an answer. (JSON makes up to six bytes of one.)
CREATE FUNCTION fits(p_job job, p_room int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN coalesce(octet_length(p_job.name), 0) + octet_length(p_job.kind) + octet_length(p_job.payload)
        + coalesce(octet_length(p_job.data), 0) + coalesce(octet_length(p_job.error), 0)
        + 6 * (coalesce(octet_length(p_job.key), 0) + coalesce(octet_length(p_job.root), 0)) <= p_room;
END $$;

-- The most bytes of a job in the answer of `claim`.
CREATE FUNCTION bytes_of(p_job answer) RETURNS int LANGUAGE sql AS
$$ SELECT 120 + coalesce(octet_length(p_job.id), 20) + octet_length(p_job.kind) + coalesce(octet_length(p_job.payload), 0)
    + coalesce(octet_length(p_job.data), 0) + coalesce(octet_length(p_job.more), 0) $$;

-- Whether a claim of these kinds (null: all) has to look closely: a job has to run alone, or may be needless and is
-- due by `p_by`. (The state is compared as text, so that only the index of such jobs can answer.)
CREATE FUNCTION has_special(p_queue int, p_by bigint, p_worker text, p_kinds text[], p_lease bigint, p_now bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM job WHERE queue = p_queue AND suspect) AND has_suspect(p_queue, p_worker, p_kinds, p_lease, p_by, p_now)
        OR has_needless(p_queue, p_kinds, p_by);
END $$;

-- Whether a job of these kinds may be needless. It reads 64 of other kinds; if there are more, it says yes, too, since
-- a close look is always right.
CREATE FUNCTION has_needless(p_queue int, p_kinds text[], p_by bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM (SELECT kind, row_number() OVER () AS nth FROM (
            SELECT kind FROM job WHERE queue = p_queue AND NOT suspect AND at <= p_by AND state::text IN ('ready', 'held')
                AND (root IS NOT NULL OR skips_from IS NOT NULL) ORDER BY at LIMIT 65) k) s
        WHERE p_kinds IS NULL OR kind = ANY (p_kinds) OR nth = 65);
END $$;

-- Whether a job that has to run alone is left to other processes: another one has taken it up, or this one has, but
-- its other jobs did not end within a lease, so others may have it for as long.
CREATE FUNCTION is_others(p_worker text, p_until bigint, p_own text, p_lease bigint, p_now bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS
$$ SELECT coalesce(CASE WHEN p_worker IS DISTINCT FROM p_own THEN p_until > p_now
    ELSE p_until <= p_now AND p_until + p_lease > p_now END, false) $$;

-- Whether a job that has to run alone concerns this process: it runs here, this process has taken it up, or it is due
-- by `p_by`, of one of these kinds, and not left to others.
CREATE FUNCTION has_suspect(p_queue int, p_worker text, p_kinds text[], p_lease bigint, p_by bigint, p_now bigint) RETURNS boolean LANGUAGE sql AS
$$ SELECT EXISTS (SELECT FROM job WHERE queue = p_queue AND suspect AND CASE
    WHEN state::text = 'running' OR alone_until > p_now THEN worker IS NOT DISTINCT FROM p_worker
    ELSE at <= p_by AND (p_kinds IS NULL OR kind = ANY (p_kinds)) AND NOT is_others(worker, alone_until, p_worker, p_lease, p_now) END) $$;

-- Whether a job of this process runs. All without a name count as one process.
CREATE FUNCTION is_busy(p_queue int, p_worker text) RETURNS boolean LANGUAGE sql AS
$$ SELECT EXISTS (SELECT FROM job WHERE queue = p_queue AND state = 'running' AND worker IS NOT DISTINCT FROM p_worker) $$;

-- The jobs that a claim takes, in order, and where their rows are: while it has locked them, no other call moves them.
-- `counted`: they take places in limits of kinds. `again`: another claim at once may find more. `is_all`: none would.
-- `others`: the jobs of other kinds among them, which go into the lines of their kinds. `lined`: some have gone there.
CREATE TYPE claiming AS (numbers bigint[], spots tid[], counted boolean, told answer[], again boolean, is_all boolean,
    others bigint[], lined boolean);

-- Whether a job may be in the line of its kind: a claim has put one there within a minute, or a tick has seen one. The
-- register is never cleared, since a claim whose job no one else sees yet may set it at any time.
CREATE FUNCTION has_lines(p_registers regclass[], p_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN pg_sequence_last_value(p_registers[10]) > p_now - 60000;
END $$;

-- The same for a peek: yes also if no call has ticked for long, as nothing is known then.
CREATE FUNCTION may_have_lines(p_queue queue, p_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN has_lines(p_queue.floors, p_now) OR p_now - coalesce(pg_sequence_last_value(p_queue.ticked), 0) NOT BETWEEN 0 AND 30000;
END $$;

-- The first `p_most` lines of kinds that have a job; null: none has.
CREATE FUNCTION first_lines(p_queue int, p_most int) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (WITH RECURSIVE l(name, nth) AS (
            (SELECT held_by, 1 FROM job WHERE queue = p_queue AND state = 'held' AND held_by >= 'o' AND held_by < 'p' ORDER BY held_by LIMIT 1)
            UNION ALL SELECT (SELECT j.held_by FROM job j WHERE j.queue = p_queue AND j.state = 'held' AND j.held_by > l.name
                AND j.held_by < 'p' ORDER BY j.held_by LIMIT 1), nth + 1 FROM l WHERE l.name IS NOT NULL AND nth < p_most)
        SELECT array_agg(name) FROM l WHERE name IS NOT NULL);
END $$;

-- The lines of these kinds that have a job; null: the first 256 of all.
CREATE FUNCTION lines_of(p_queue int, p_kinds text[]) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
DECLARE v_first text[];
BEGIN
    IF p_kinds IS NULL THEN RETURN first_lines(p_queue, 256); END IF;
    -- If there are few lines, all are read. Of many, a look for each kind costs less.
    IF cardinality(p_kinds) > 16 THEN
        v_first := first_lines(p_queue, 64);
        IF coalesce(cardinality(v_first), 0) < 64 THEN
            RETURN (SELECT array_agg(n) FROM unnest(v_first) n WHERE substr(n, 2) = ANY (p_kinds));
        END IF;
    END IF;
    -- (With `EXISTS` this would be a join, and while the statistics know of few jobs one that reads all lines.)
    RETURN (SELECT array_agg('o' || k) FROM unnest(p_kinds) k
        WHERE (SELECT true FROM job WHERE queue = p_queue AND state = 'held' AND held_by = 'o' || k LIMIT 1));
END $$;

-- Puts ready jobs into the lines of their kinds, and rings for workers that take them.
CREATE FUNCTION put_in_lines(p_queue int, p_registers regclass[], p_bell regclass, p_numbers bigint[], p_now bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE job SET state = 'held', held_by = 'o' || kind WHERE number = ANY (ARRAY(SELECT number FROM job
        WHERE number = ANY (p_numbers) AND state = 'ready' AND at <= p_now ORDER BY number FOR UPDATE SKIP LOCKED));
    IF NOT FOUND THEN RETURN; END IF;
    PERFORM setval(p_registers[10], p_now);
    -- Also within 20 ms of the last notification: workers that heard it have skipped what is locked here.
    PERFORM setval(p_bell, -floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint), pg_notify(channel_of(p_queue), '')
    WHERE pg_sequence_last_value(p_bell) <> 0;
END $$;

-- Locks the first ready jobs in this order of priorities, except `p_but`; none, if the claim has to look closely. It
-- reads from these floors, or from this head (see `queue`).
CREATE FUNCTION lock_ready(p_queue int, p_order int[], p_floors bigint[], p_head bigint, p_place bigint, p_most int,
    p_kinds text[], p_due_by bigint, p_now bigint, p_but tid[]) RETURNS claiming LANGUAGE plpgsql AS $$
DECLARE v_locked claiming;
BEGIN
    IF p_kinds IS NOT NULL THEN
        RETURN lock_kinds(p_queue, p_order, p_floors, p_head, p_place, p_most, p_kinds, p_due_by, p_now, p_but);
    END IF;
    SELECT array_agg(x.number), array_agg(x.spot) INTO v_locked.numbers, v_locked.spots
    FROM (SELECT x.* FROM unnest(p_order) p(n), LATERAL (
            SELECT r.number, r.ctid AS spot FROM job r
            WHERE r.queue = p_queue AND r.state = 'ready' AND r.priority = p.n AND r.at <= p_now
                AND (r.at, r.place) > (CASE WHEN p_head & 3 = p.n THEN greatest(p_floors[p.n + 1], p_head >> 2) ELSE p_floors[p.n + 1] END,
                    CASE WHEN p_head & 3 = p.n AND p_head >> 2 >= p_floors[p.n + 1] THEN p_place ELSE 0 END)
                AND (p_due_by IS NULL OR p_due_by >= p_now OR r.due <= p_due_by)
                AND (r.expires IS NULL OR r.expires > p_now) AND NOT r.suspect
                AND (p_but IS NULL OR r.ctid <> ALL (p_but))
            ORDER BY r.at, r.place LIMIT p_most FOR UPDATE SKIP LOCKED) x
        -- What `has_special` checks, in the same snapshot as the lock.
        WHERE NOT EXISTS (SELECT FROM job s WHERE s.queue = p_queue AND NOT s.suspect AND s.at <= p_now
                AND s.state::text = 'ready' AND (s.root IS NOT NULL OR s.skips_from IS NOT NULL))
        LIMIT p_most) x;
    RETURN v_locked;
END $$;

-- The same for a claim of some kinds: it also locks jobs of other kinds, up to the last one that it takes.
CREATE FUNCTION lock_kinds(p_queue int, p_order int[], p_floors bigint[], p_head bigint, p_place bigint, p_most int,
    p_kinds text[], p_due_by bigint, p_now bigint, p_but tid[]) RETURNS claiming LANGUAGE plpgsql AS $$
DECLARE v_locked claiming;
BEGIN
    -- (A hash table of the kinds would be built for each claim, which costs a claim of few jobs more than their whole
    -- list.)
    SELECT array_agg(x.number), array_agg(x.spot), array_agg(x.number) FILTER (WHERE x.kind <> ALL (p_kinds))
    INTO v_locked.numbers, v_locked.spots, v_locked.others
    FROM (SELECT x.* FROM unnest(p_order) p(n), LATERAL (
            SELECT r.number, r.ctid AS spot, r.kind FROM job r
            WHERE r.queue = p_queue AND r.state = 'ready' AND r.priority = p.n AND r.at <= p_now
                AND (r.at, r.place) > (CASE WHEN p_head & 3 = p.n THEN greatest(p_floors[p.n + 1], p_head >> 2) ELSE p_floors[p.n + 1] END,
                    CASE WHEN p_head & 3 = p.n AND p_head >> 2 >= p_floors[p.n + 1] THEN p_place ELSE 0 END)
                AND (p_due_by IS NULL OR p_due_by >= p_now OR r.due <= p_due_by)
                AND (r.expires IS NULL OR r.expires > p_now) AND NOT (r.suspect AND r.kind = ANY (p_kinds))
                AND (p_but IS NULL OR r.ctid <> ALL (p_but))
            ORDER BY r.at, r.place LIMIT p_most FOR UPDATE SKIP LOCKED) x
        -- Mostly there is no such job, and this saves the call.
        WHERE NOT EXISTS (SELECT FROM job s WHERE s.queue = p_queue AND NOT s.suspect AND s.at <= p_now
                AND s.state::text IN ('ready', 'held') AND (s.root IS NOT NULL OR s.skips_from IS NOT NULL))
            OR NOT has_needless(p_queue, p_kinds, p_now)
        LIMIT p_most) x;
    RETURN v_locked;
END $$;

-- Locks the first jobs of these kinds behind others, which it returns, too, up to the last one that it takes. It reads
-- at most `c_looks`: `again`, if there may be more.
CREATE FUNCTION lock_behind(p_queue int, p_order int[], p_floors bigint[], p_most int, p_kinds text[], p_due_by bigint,
    p_now bigint, p_but tid[]) RETURNS claiming LANGUAGE plpgsql AS $$
DECLARE
    c_looks CONSTANT int := 256;
    v_locked claiming;
    v_row record;
    v_looked int := 0;
BEGIN
    v_locked.numbers := '{}';
    v_locked.spots := '{}';
    v_locked.others := '{}';
    FOR v_row IN SELECT x.* FROM unnest(p_order) p(n), LATERAL (
            SELECT r.number, r.ctid AS spot, r.kind IN (SELECT unnest(p_kinds)) AS own FROM job r
            WHERE r.queue = p_queue AND r.state = 'ready' AND r.priority = p.n AND r.at <= p_now AND r.at > p_floors[p.n + 1]
                AND (p_due_by IS NULL OR p_due_by >= p_now OR r.due <= p_due_by)
                AND (r.expires IS NULL OR r.expires > p_now) AND NOT (r.suspect AND r.kind = ANY (p_kinds)) AND (p_but IS NULL OR r.ctid <> ALL (p_but))
            ORDER BY r.at, r.place LIMIT c_looks FOR UPDATE SKIP LOCKED) x LIMIT c_looks
    LOOP
        v_looked := v_looked + 1;
        IF v_row.own THEN
            v_locked.numbers := v_locked.numbers || v_row.number;
            v_locked.spots := v_locked.spots || v_row.spot;
            EXIT WHEN cardinality(v_locked.numbers) = p_most;
        ELSE
            v_locked.others := v_locked.others || v_row.number;
        END IF;
    END LOOP;
    v_locked.again := v_looked = c_looks;
    RETURN v_locked;
END $$;

-- Locks the first jobs of one priority in these lines.
CREATE FUNCTION lock_in_lines(p_queue int, p_lines text[], p_priority int, p_most int, p_due_by bigint, p_now bigint, p_but tid[])
RETURNS claiming LANGUAGE plpgsql AS $$
DECLARE v_locked claiming;
BEGIN
    SELECT array_agg(x.number), array_agg(x.spot) INTO v_locked.numbers, v_locked.spots FROM (
        SELECT h.number, h.spot FROM unnest(p_lines) l(name), LATERAL (
            SELECT j.number, j.ctid AS spot, j.at, j.place FROM job j
            WHERE j.queue = p_queue AND j.state = 'held' AND j.held_by = l.name AND j.priority = p_priority
                AND (p_due_by IS NULL OR p_due_by >= p_now OR j.due <= p_due_by) AND (j.expires IS NULL OR j.expires > p_now) AND NOT j.suspect
                AND (p_but IS NULL OR j.ctid <> ALL (p_but))
            -- With many lines, each gets its share of the locks.
            ORDER BY j.at, j.place LIMIT least(p_most, 1 + 4 * p_most / cardinality(p_lines)) FOR UPDATE SKIP LOCKED) h
        ORDER BY h.at, h.place LIMIT p_most) x;
    RETURN v_locked;
END $$;

-- Puts the jobs of other kinds among the locked ones into the lines of their kinds, and looks for more behind them.
CREATE FUNCTION go_behind(p_queue int, p_registers regclass[], p_bell regclass, p_locked claiming, p_order int[], p_floors bigint[],
    p_most int, p_kinds text[], p_due_by bigint, p_now bigint, p_but tid[]) RETURNS claiming LANGUAGE plpgsql AS $$
DECLARE v_more claiming;
BEGIN
    PERFORM put_in_lines(p_queue, p_registers, p_bell, p_locked.others, p_now);
    SELECT array_agg(u.number), array_agg(u.spot) INTO p_locked.numbers, p_locked.spots
    FROM unnest(p_locked.numbers, p_locked.spots) u(number, spot) WHERE u.number <> ALL (p_locked.others);
    p_locked.others := NULL;
    p_locked.lined := true;
    v_more := lock_behind(p_queue, p_order, p_floors, p_most - coalesce(cardinality(p_locked.spots), 0), p_kinds, p_due_by, p_now, p_but || p_locked.spots);
    IF cardinality(v_more.others) > 0 THEN PERFORM put_in_lines(p_queue, p_registers, p_bell, v_more.others, p_now); END IF;
    p_locked := both_of(p_locked, v_more);
    p_locked.again := v_more.again;
    RETURN p_locked;
END $$;

-- Locks the jobs of a claim if jobs of its kinds are in lines: these came before the ready ones of the same priority.
-- Jobs of other kinds that it meets go into their lines.
CREATE FUNCTION lock_own(p_queue int, p_registers regclass[], p_bell regclass, p_lines text[], p_order int[], p_floors bigint[],
    p_head bigint, p_place bigint, p_most int, p_kinds text[], p_due_by bigint, p_now bigint, p_but tid[]) RETURNS claiming
LANGUAGE plpgsql AS $$
DECLARE v_locked claiming; v_more claiming; v_left int := p_most;
BEGIN
    IF has_needless(p_queue, p_kinds, p_now) THEN RETURN NULL; END IF;
    FOR v_at IN 1 .. cardinality(p_order) LOOP
        v_locked := both_of(v_locked, lock_in_lines(p_queue, p_lines, p_order[v_at], v_left, p_due_by, p_now, p_but));
        v_left := p_most - coalesce(cardinality(v_locked.spots), 0);
        EXIT WHEN v_left = 0;
        v_more := lock_ready(p_queue, p_order[v_at:v_at], p_floors, p_head, p_place, v_left, p_kinds, p_due_by, p_now, p_but);
        IF v_more.others IS NOT NULL THEN
            v_more := go_behind(p_queue, p_registers, p_bell, v_more, p_order[v_at:v_at], p_floors, v_left, p_kinds, p_due_by, p_now, p_but);
            v_locked.again := v_more.again;
        END IF;
        v_locked := both_of(v_locked, v_more);
        v_left := p_most - coalesce(cardinality(v_locked.spots), 0);
        EXIT WHEN v_left = 0 OR v_locked.again;
    END LOOP;
    RETURN v_locked;
END $$;

-- The same, or if none of its kinds is in a line, only ready jobs.
CREATE FUNCTION lock_others(p_queue int, p_registers regclass[], p_bell regclass, p_lines text[], p_order int[], p_floors bigint[],
    p_head bigint, p_place bigint, p_most int, p_kinds text[], p_due_by bigint, p_now bigint, p_but tid[]) RETURNS claiming
LANGUAGE plpgsql AS $$
DECLARE v_locked claiming;
BEGIN
    IF p_lines IS NOT NULL THEN
        RETURN lock_own(p_queue, p_registers, p_bell, p_lines, p_order, p_floors, p_head, p_place, p_most, p_kinds, p_due_by, p_now, p_but);
    END IF;
    v_locked := lock_ready(p_queue, p_order, p_floors, p_head, p_place, p_most, p_kinds, p_due_by, p_now, p_but);
    IF v_locked.others IS NOT NULL THEN
        v_locked := go_behind(p_queue, p_registers, p_bell, v_locked, p_order, p_floors, p_most, p_kinds, p_due_by, p_now, p_but);
    END IF;
    RETURN v_locked;
END $$;

-- Locks the jobs of a claim in a queue without limits. An expression costs as much as locking a job, so there are few
-- on the common way.
CREATE FUNCTION lock_plain(p_queue int, p_registers regclass[], p_turn regclass, p_bell regclass, p_most int, p_worker text, p_kinds text[],
    p_lease bigint, p_due_by bigint, p_now bigint) RETURNS claiming LANGUAGE plpgsql AS $$
DECLARE
    v_turns bigint := coalesce(pg_sequence_last_value(p_turn), 0);
    -- Each eighth job is of the lowest priority, so that none starves.
    v_low int := ((v_turns + p_most) / 8 - v_turns / 8)::int;
    v_floors bigint[] := floors_of(p_registers);
    v_head bigint;
    v_place bigint;
    v_locked claiming;
    v_more claiming;
    v_got int := 0;
    v_passed bigint;
    v_is_dear boolean;
    v_is_refused boolean;
    v_lines text[];
BEGIN
    -- (The same as `has_lines`, without a call.)
    IF pg_sequence_last_value(p_registers[10]) > p_now - 60000 THEN v_lines := lines_of(p_queue, p_kinds); END IF;
    IF p_most > v_low THEN
        v_head := pg_sequence_last_value(p_registers[5]);
        v_place := pg_sequence_last_value(p_registers[6]);
        IF v_lines IS NOT NULL THEN
            v_locked := lock_own(p_queue, p_registers, p_bell, v_lines, '{0,1,2,3}', v_floors, v_head, v_place >> 12, p_most, p_kinds, p_due_by,
                p_now, NULL);
        ELSIF p_kinds IS NULL THEN
            v_locked := lock_ready(p_queue, '{0,1,2,3}', v_floors, v_head, v_place >> 12, p_most, NULL, p_due_by, p_now, NULL);
        ELSE
            v_locked := lock_kinds(p_queue, '{0,1,2,3}', v_floors, v_head, v_place >> 12, p_most, p_kinds, p_due_by, p_now, NULL);
            IF v_locked.others IS NOT NULL THEN
                v_locked := go_behind(p_queue, p_registers, p_bell, v_locked, '{0,1,2,3}', v_floors, p_most, p_kinds, p_due_by, p_now, NULL);
            END IF;
        END IF;
        v_got := coalesce(cardinality(v_locked.numbers), 0);
        IF v_low > 0 AND v_got > p_most - v_low AND are_others_lower(p_queue, v_locked.spots[p_most - v_low + 1], v_floors, v_lines, p_now) THEN
            v_got := p_most - v_low;
            v_locked.numbers := v_locked.numbers[:v_got];
            v_locked.spots := v_locked.spots[:v_got];
            v_more := lock_others(p_queue, p_registers, p_bell, v_lines, '{3,2,1,0}', v_floors, v_head, v_place >> 12, v_low, p_kinds,
                p_due_by, p_now, v_locked.spots);
        END IF;
        -- Of small claims, every third moves the head. One that skips jobs, or takes them from lines, must not.
        IF (v_got >= 8 OR v_got > 0 AND v_turns % 3 = 0) AND v_lines IS NULL AND (p_due_by IS NULL OR p_due_by >= p_now) THEN
            v_place := move_head(p_registers, v_place, v_locked.spots[v_got]);
        END IF;
    END IF;
    IF v_got < p_most THEN
        v_locked := both_of(v_locked, v_more);
        -- The rest: from 5 s deeper, where late commits are.
        IF coalesce(cardinality(v_locked.spots), 0) < p_most THEN
            v_is_dear := is_dear(p_registers, 7, p_now);
            v_passed := passed_ready();
            v_locked := both_of(v_locked, lock_others(p_queue, p_registers, p_bell, v_lines,
                CASE WHEN v_low > 0 THEN '{3,2,1,0}'::int[] ELSE '{0,1,2,3}' END,
                looks_from(p_registers, 7, 5000, p_now), NULL, NULL, p_most - coalesce(cardinality(v_locked.spots), 0),
                p_kinds, p_due_by, p_now, v_locked.spots));
            v_passed := passed_ready() - v_passed - coalesce(cardinality(v_locked.spots), 0);
            -- After a cheap look, the peek that follows notes it.
            IF NOT v_is_dear AND is_much(v_passed) THEN PERFORM note_look(p_registers, 7, v_passed, p_now); END IF;
        END IF;
        v_got := coalesce(cardinality(v_locked.spots), 0);
    END IF;
    -- A job that has to run alone waits until the calls of its process that have this lock commit, since their jobs
    -- are about to run. It may have begun since the look, or be about to. (`EXISTS` is a statement, which costs a
    -- claim of one job 5 %, so only a queue that ever had such a job runs it.)
    v_is_refused := v_got > 0 AND NOT pg_try_advisory_xact_lock_shared(lock_of('plain ' || coalesce(p_worker, ''), p_queue));
    IF v_got > 0 AND NOT v_is_refused AND pg_sequence_last_value(p_registers[11]) > 0 THEN
        v_is_refused := EXISTS (SELECT FROM job WHERE queue = p_queue AND suspect)
            AND has_suspect(p_queue, p_worker, p_kinds, p_lease, p_now, p_now);
    END IF;
    IF v_is_refused THEN
        v_locked.spots := NULL;
        RETURN v_locked;
    END IF;
    IF v_got = 1 THEN
        v_turns := nextval(p_turn);
    ELSIF v_got > 1 THEN
        v_turns := setval(p_turn, v_turns + v_got);
    END IF;
    RETURN v_locked;
END $$;

-- Whether jobs of a lower priority than this one's are ready.
CREATE FUNCTION are_others_lower(p_queue int, p_spot tid, p_floors bigint[], p_lines text[], p_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT EXISTS (SELECT FROM generate_series(j.priority + 1, 3) p(n), LATERAL (SELECT FROM job r
        WHERE r.queue = p_queue AND r.state = 'ready' AND r.priority = p.n AND r.at <= p_now AND r.at >= p_floors[p.n + 1]
        ORDER BY r.at, r.place LIMIT 1) r)
        OR p_lines IS NOT NULL AND EXISTS (SELECT FROM unnest(p_lines) l(name), generate_series(j.priority + 1, 3) p(n), LATERAL (
            SELECT FROM job h WHERE h.queue = p_queue AND h.state = 'held' AND h.held_by = l.name AND h.priority = p.n
            ORDER BY h.at, h.place LIMIT 1) h)
        FROM job j WHERE j.ctid = p_spot);
END $$;

-- Moves the head of a queue to this job, unless another claim was further, or a tick started over since the caller
-- read the register of the place: the tick saw jobs behind the head that no claim took.
CREATE FUNCTION move_head(p_registers regclass[], p_read bigint, p_spot tid) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE v_place bigint := pg_sequence_last_value(p_registers[6]);
BEGIN
    IF (v_place & 4095) <> (p_read & 4095) THEN RETURN v_place; END IF;
    PERFORM setval(p_registers[5], (j.at << 2) + j.priority), setval(p_registers[6], (j.place << 12) + (v_place & 4095))
    FROM job j WHERE j.ctid = p_spot AND j.place > v_place >> 12 AND j.place < 1::bigint << 50;
    RETURN v_place;
END $$;

-- The jobs of both.
CREATE FUNCTION both_of(p_these claiming, p_those claiming) RETURNS claiming LANGUAGE plpgsql AS $$
BEGIN
    p_these.numbers := p_these.numbers || p_those.numbers;
    p_these.spots := p_these.spots || p_those.spots;
    IF p_those.again THEN p_these.again := true; END IF;
    IF p_those.lined THEN p_these.lined := true; END IF;
    RETURN p_these;
END $$;

-- Why a waiting job need not run, if so: it has expired, or others made it needless.
CREATE FUNCTION needless(p_job job, p_now bigint, OUT error text, OUT skipped text) LANGUAGE plpgsql AS $$
BEGIN
    IF p_job.expires <= p_now THEN
        error := 'it expired: no worker had taken it in time';
    ELSIF p_job.root IS NOT NULL AND EXISTS (SELECT FROM root r WHERE r.queue = p_job.queue
        AND r.signature = p_job.root AND r.until > p_now AND r.at > p_job.root_at) THEN
        skipped := 'superseded';
    ELSIF p_job.skips_from IS NOT NULL AND p_job.failures = 0 AND p_job.crashes = 0 AND EXISTS (
        SELECT FROM executed e WHERE e.queue = p_job.queue AND e.fingerprint = p_job.fingerprint AND e.until > p_now
            AND e.place >= p_job.skips_from) THEN
        skipped := 'executed';
    END IF;
END $$;

-- Makes a job due that is not due yet, for a claim that takes jobs due by `p_due_by`.
CREATE FUNCTION claim_early(p_queue queue, p_kinds text[], p_due_by bigint, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE job SET at = p_now WHERE number = ANY (ARRAY(
    SELECT x.number FROM unnest('{0,1,2,3}'::int[]) p(n), LATERAL (
        SELECT number, at, id_of(name, number) AS id FROM job
        WHERE queue = p_queue.id AND state = 'ready' AND priority = p.n AND at > p_now AND at <= p_due_by AND NOT suspect
            AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        ORDER BY at, id_of(name, number) COLLATE "C" LIMIT 1 FOR UPDATE SKIP LOCKED) x
    ORDER BY x.at, x.id COLLATE "C" LIMIT 1));
END $$;

-- Moves the place of a claimed job behind `p_places` ones of earlier rounds. Other answers stay.
CREATE FUNCTION moved_behind(p_answer answer, p_places int) RETURNS answer LANGUAGE plpgsql AS $$
BEGIN
    IF p_answer.what = 'claimed' THEN p_answer.priority := p_answer.priority + (p_places << 2); END IF;
    RETURN p_answer;
END $$;

-- Ends these attempts, and claims. A claim that read many jobs and found too few that may run reads on, four times or
-- for 50 ms, since other claims may wait for it. If there may be more after that, it rings.
CREATE FUNCTION turns(p_numbers bigint[], p_tokens bigint[], p_ends text[], p_errors text[], p_datas text[], p_queue text,
    p_most int, p_worker text, p_kinds text[], p_lease bigint, p_listen bigint) RETURNS answer[] LANGUAGE plpgsql AS $$
DECLARE
    v_most int := p_most;
    v_until timestamptz := clock_timestamp() + interval '50 ms';
    v_answers answer[];
    v_claimed answer[] := '{}';
    v_rings boolean := false;
BEGIN
    IF p_kinds IS NOT NULL THEN p_kinds := ARRAY(SELECT DISTINCT k FROM unnest(p_kinds) k WHERE k IS NOT NULL); END IF;
    FOR v_round IN 1 .. 64 LOOP
        -- Only the first round ticks: later ones may have the lock of claims.
        v_answers := ARRAY(SELECT t FROM turn(p_numbers, p_tokens, p_ends, '{}', p_errors, p_datas, p_queue, p_most, p_kinds,
            NULL, p_lease, p_worker, CASE WHEN v_round = 1 THEN false END, p_listen, NULL, NULL, 1 << 18) t);
        EXIT WHEN NOT EXISTS (SELECT FROM unnest(v_answers) a WHERE a.what = 'again');
        v_rings := true;
        EXIT WHEN v_round >= 4 AND clock_timestamp() >= v_until;
        p_numbers := '{}';
        v_claimed := v_claimed || ARRAY(SELECT moved_behind(a, cardinality(v_claimed)) FROM unnest(v_answers) a WHERE a.what = 'claimed');
        p_most := v_most - cardinality(v_claimed);
    END LOOP;
    -- Whoever listens, perhaps the caller, makes the next call.
    PERFORM ring(q.id, q.bell) FROM queue q WHERE v_rings AND q.name = p_queue;
    IF cardinality(v_claimed) = 0 THEN RETURN v_answers; END IF;
    RETURN v_claimed || ARRAY(SELECT moved_behind(a, cardinality(v_claimed)) FROM unnest(v_answers) a);
END $$;

-- The jobs of a claim whose payload did not fit into its answer, as `claim` returns them, while the caller has them.
-- It only reads, and blocks no call. The answer has up to 64 MB of payloads and data, and at least one job: the caller
-- asks for the next ones until the answer is empty. A job that is still missing then is another worker's.
CREATE FUNCTION load(p_jobs bigint[], p_tokens bigint[])
RETURNS TABLE (job bigint, token bigint, id text, kind text, payload text, data text, failures int, crashes int, pushed bigint, more text, error text)
STABLE LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT j.number, j.token, id_of(j.name, j.number), j.kind, j.payload, j.data, j.failures, j.crashes, j.pushed,
            more_of(j.key, j.resubmit, j.root, j.root_at, j.cost, j.meta, j.noted), j.error
        FROM (SELECT u.number, u.place, sum(u.bytes) OVER (ORDER BY u.place) <= 64 << 20 OR row_number() OVER (ORDER BY u.place) = 1 AS fits
            FROM (SELECT u.number, u.place, octet_length(h.payload)::bigint + coalesce(octet_length(h.data), 0) AS bytes
                FROM unnest(p_jobs, p_tokens) WITH ORDINALITY u(number, token, place),
                    LATERAL (SELECT * FROM job j WHERE j.number = u.number AND j.token = u.token LIMIT 1) h) u) u,
            LATERAL (SELECT * FROM job j WHERE j.number = u.number LIMIT 1) j
        WHERE u.fits ORDER BY u.place;
END $$;

-- For every language: claims up to `p_most` jobs, and 32 at most, for `p_lease` milliseconds (null: the queue's
-- lease), and does the maintenance that is due. The attempt is `failures` + 1. A job that does not fit into the answer
-- (see `answer_room`) has no payload, id or data, and `load` brings it. The claim is durable with the transaction;
-- `p_async` is for callers whose transaction is this call alone. `p_listen`: if there is no job, the caller waits up
-- to this many milliseconds for the channel of `listen_to`, and then claims again.
CREATE FUNCTION claim(p_queue text, p_most int DEFAULT 1, p_worker text DEFAULT NULL, p_kinds text[] DEFAULT NULL,
    p_lease bigint DEFAULT NULL, p_async boolean DEFAULT false, p_listen bigint DEFAULT NULL)
RETURNS TABLE (job bigint, token bigint, id text, kind text, payload text, data text, failures int, crashes int, pushed bigint, more text)
LANGUAGE plpgsql AS $$
DECLARE v_before text := current_setting('synchronous_commit'); v_answers answer[]; v_room int := answer_room();
BEGIN
    p_lease := bounded(p_lease);
    IF p_most > 32 THEN p_most := 32; END IF;
    IF p_lease <= 0 THEN PERFORM refuse('a lease has 1 millisecond or more, or is null: that of the queue'); END IF;
    v_answers := turns('{}', '{}', '{}', '{}', '{}', p_queue, p_most, p_worker, p_kinds, p_lease, p_listen);
    -- While it has jobs, these show it.
    IF p_worker IS NOT NULL AND NOT EXISTS (SELECT FROM unnest(v_answers) a WHERE a.what = 'claimed') THEN
        PERFORM note_worker(queue_of(p_queue), p_worker, NULL, p_kinds, NULL, false, clock());
    END IF;
    IF p_most = 1 THEN
        RETURN QUERY SELECT a.number, a.token, id_of(a.id, a.number), a.kind, CASE WHEN bytes_of(a) <= v_room THEN a.payload END,
                CASE WHEN bytes_of(a) <= v_room THEN a.data END, a.failures, a.crashes, a.pushed, a.more
            FROM unnest(v_answers) a WHERE a.what = 'claimed';
    ELSE
        -- A job whose payload does not fit still has its kind, unless many have long kinds.
        RETURN QUERY SELECT a.number, a.token, CASE WHEN a.fits THEN id_of(a.id, a.number) END, CASE WHEN a.names THEN a.kind END,
                CASE WHEN a.fits THEN a.payload END, CASE WHEN a.fits THEN a.data END, CASE WHEN a.names THEN a.failures END,
                CASE WHEN a.names THEN a.crashes END, CASE WHEN a.names THEN a.pushed END, CASE WHEN a.fits THEN a.more END
            FROM (SELECT a.*, a.names AND a.payload IS NOT NULL AND sum(bytes_of(a.job) - 120 - octet_length(a.kind)) OVER w
                    <= v_room - 90 * count(*) OVER () - sum(CASE WHEN a.names THEN 30 + octet_length(a.kind) ELSE 0 END) OVER () AS fits,
                row_number() OVER w AS place FROM (
                    -- Each takes 47 bytes, and those of two numbers.
                    SELECT a.*, a AS job, a.kind IS NOT NULL AND sum(30 + octet_length(a.kind)) OVER (ORDER BY a.priority & 3, a.priority)
                        <= v_room - 90 * count(*) OVER () AS names FROM unnest(v_answers) a WHERE a.what = 'claimed') a
                WINDOW w AS (ORDER BY a.priority & 3, a.priority)) a
            ORDER BY a.place;
    END IF;
    -- A turn that only claims has made the caller's transaction asynchronous.
    IF NOT p_async THEN PERFORM set_config('synchronous_commit', v_before, true); END IF;
END $$;
