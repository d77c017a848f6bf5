-- Claims of a queue with limits, or with jobs that may be needless or have to run alone.
--
-- Such a queue has one claim at a time: the lock is held to the end of the transaction, and each statement after it
-- sees all earlier claims.

-- What a claim knows of the limits: their sorts, the bounds of the queue and of each key, the most jobs that it may
-- take, and whether bells rang. `names` and `places`: each limit that it has read, and how many places are left (null:
-- any number). `awaited`: limits with a job that waits for tokens. `full_by`: the limit that held the last job.
CREATE TYPE room AS (sorts text, of_all limits, of_each limits, most int, is_rung boolean,
    names text[], places int[], awaited text[], full_by text, is_alone boolean);

CREATE FUNCTION room_of(p_queue int, p_most int, p_worker text, p_now bigint) RETURNS room LANGUAGE plpgsql AS $$
DECLARE v_room room; v_alone text[];
BEGIN
    SELECT q.limit_sorts, EXISTS (SELECT FROM freed f WHERE f.queue = q.id AND f.at <= p_now),
        (SELECT array_agg(j.state::text) FROM job j WHERE j.queue = q.id AND j.suspect AND j.worker IS NOT DISTINCT FROM p_worker
            AND (j.state::text = 'running' OR j.alone_until > p_now))
    INTO v_room.sorts, v_room.is_rung, v_alone FROM queue q WHERE q.id = p_queue;
    -- The process has a job that has to run alone.
    v_room.is_alone := v_alone IS NOT NULL;
    v_room.most := CASE WHEN v_room.is_alone AND is_busy(p_queue, p_worker) THEN 0 ELSE p_most END;
    IF v_room.sorts LIKE '%q%' THEN
        v_room.of_all := bounds_of(p_queue, 'q');
        IF (v_room.of_all).at_once IS NOT NULL THEN
            v_room.most := least(v_room.most, (v_room.of_all).at_once - taken_of(p_queue, 'q'));
        END IF;
    END IF;
    IF v_room.sorts LIKE '%e%' THEN v_room.of_each := bounds_of(p_queue, 'e'); END IF;
    v_room.names := '{}';
    v_room.places := '{}';
    v_room.awaited := '{}';
    RETURN v_room;
END $$;

-- The limit of this name, if the queue has one.
CREATE FUNCTION limit_in(p_room room, p_queue int, p_name text) RETURNS limits LANGUAGE plpgsql AS $$
BEGIN
    IF left(p_name, 1) = 'k' AND p_room.sorts NOT LIKE '%k%' THEN RETURN p_room.of_each; END IF;
    IF p_room.sorts LIKE '%' || left(p_name, 1) || '%' THEN RETURN bounds_of(p_queue, p_name); END IF;
    RETURN NULL;
END $$;

-- Checks whether the limits of a job have a place and tokens for it: `full_by` is the first that has not.
CREATE FUNCTION look_at_limits(p_queue int, p_job job, p_room room, p_now bigint) RETURNS room LANGUAGE plpgsql AS $$
DECLARE v_name text; v_place int; v_limit limits; v_at bigint;
BEGIN
    p_room.full_by := NULL;
    FOREACH v_name IN ARRAY ARRAY['k' || p_job.key, 't' || p_job.kind] LOOP
        CONTINUE WHEN v_name IS NULL;
        v_place := array_position(p_room.names, v_name);
        IF v_place IS NULL THEN
            v_limit := limit_in(p_room, p_queue, v_name);
            v_place := 1 + cardinality(p_room.names);
            p_room.names := p_room.names || v_name;
            p_room.places := p_room.places || CASE WHEN v_limit.at_once IS NOT NULL
                THEN v_limit.at_once - taken_of(p_queue, v_name)::int END;
        END IF;
        IF p_room.places[v_place] <= 0 THEN
            p_room.full_by := coalesce(p_room.full_by, v_name);
        ELSIF p_room.sorts LIKE '%r%' THEN
            v_limit := limit_in(p_room, p_queue, v_name);
            CONTINUE WHEN v_limit.rate_count IS NULL;
            v_at := greatest(v_at, tokens_at(v_limit, bucket_of(v_limit, v_name, p_now), p_job.cost));
            -- A cheaper job does not overtake one that waits for tokens.
            IF v_name = ANY (p_room.awaited) OR v_at > p_now THEN
                p_room.full_by := coalesce(p_room.full_by, v_name);
                p_room.awaited := p_room.awaited || v_name;
            END IF;
        END IF;
    END LOOP;
    RETURN p_room;
END $$;

-- Takes the places and tokens of a job. Null: the queue's own rate has no tokens.
CREATE FUNCTION take_places(p_queue int, p_job job, p_room room, p_now bigint) RETURNS room LANGUAGE plpgsql AS $$
DECLARE v_name text; v_place int; v_limit limits; v_bucket bucket;
BEGIN
    IF (p_room.of_all).rate_count IS NOT NULL THEN
        v_bucket := bucket_of(p_room.of_all, 'q', p_now);
        IF tokens_at(p_room.of_all, v_bucket, p_job.cost) > p_now THEN RETURN NULL; END IF;
        PERFORM take_tokens(v_bucket, p_job.cost);
    END IF;
    FOREACH v_name IN ARRAY ARRAY['k' || p_job.key, 't' || p_job.kind] LOOP
        CONTINUE WHEN v_name IS NULL;
        v_place := array_position(p_room.names, v_name);
        p_room.places[v_place] := p_room.places[v_place] - 1;
        IF p_room.sorts LIKE '%r%' THEN
            v_limit := limit_in(p_room, p_queue, v_name);
            IF v_limit.rate_count IS NOT NULL THEN PERFORM take_tokens(bucket_of(v_limit, v_name, p_now), p_job.cost); END IF;
        END IF;
    END LOOP;
    RETURN p_room;
END $$;

-- Takes the doorbells that have rung, and returns their limits and the caller's `p_freed`. Of the first 1,024 bells it
-- takes those of up to 256 limits, each with its equals.
CREATE FUNCTION take_bells(p_queue int, p_freed text[], p_now bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE v_rung text[];
BEGIN
    WITH rung AS (
        DELETE FROM freed WHERE id = ANY (ARRAY(SELECT x.id FROM (
            SELECT f.id, dense_rank() OVER (ORDER BY f.first_at, f.first_id) AS nth FROM (
                SELECT r.id, first_value(r.at) OVER (w) AS first_at, first_value(r.id) OVER (w) AS first_id FROM (
                    SELECT id, at, name FROM freed WHERE queue = p_queue AND at <= p_now
                    ORDER BY at, id LIMIT 1024 FOR UPDATE SKIP LOCKED) r
                WINDOW w AS (PARTITION BY r.name ORDER BY r.at, r.id)) f) x WHERE x.nth <= 256))
        RETURNING name)
    SELECT coalesce(array_agg(DISTINCT n.name), '{}') INTO v_rung
    FROM (SELECT name FROM rung UNION ALL SELECT unnest(p_freed)) n(name);
    RETURN v_rung;
END $$;

-- The jobs that a claim looks at: the first ready ones of each priority, the first held ones of each limit that may
-- have a place, and with `p_early` those due by `p_due_by`.
CREATE FUNCTION look_for(p_queue queue, p_floors bigint[], p_order int[], p_looks int, p_most int, p_kinds text[], p_due_by bigint, p_now bigint,
    p_early boolean, p_rung text[]) RETURNS TABLE (number bigint, priority smallint, at bigint, place bigint, held_by text, key text, own boolean)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT r.* FROM unnest(p_order) p(n), LATERAL (
        SELECT j.number, j.priority, j.at, j.place, j.held_by, j.key, coalesce(j.kind = ANY (p_kinds), true) FROM job j
        WHERE j.queue = p_queue.id AND j.state = 'ready' AND j.priority = p.n AND j.at <= p_now AND j.at >= p_floors[p.n + 1]
            AND (p_due_by IS NULL OR p_due_by >= p_now OR j.due <= p_due_by)
        ORDER BY j.at, j.place LIMIT p_looks) r;
    IF cardinality(p_rung) > 0 THEN
        -- All jobs of a kind's limit are of that kind.
        RETURN QUERY SELECT h.* FROM unnest(p_rung) r(name), LATERAL (
            SELECT f.* FROM unnest(p_order) p(n), LATERAL (
                SELECT j.number, j.priority, j.at, j.place, j.held_by, j.key, true FROM job j
                WHERE j.queue = p_queue.id AND j.state = 'held' AND j.held_by = r.name AND j.priority = p.n
                    AND (p_due_by IS NULL OR p_due_by >= p_now OR j.due <= p_due_by) AND (p_kinds IS NULL OR j.kind = ANY (p_kinds))
                -- Jobs in lines were not checked against limits yet, so more are read.
                ORDER BY j.at, j.place LIMIT CASE WHEN r.name LIKE 'o%' THEN p_looks ELSE p_most END) f
            LIMIT CASE WHEN r.name LIKE 'o%' THEN p_looks ELSE p_most END) h
            WHERE p_kinds IS NULL OR r.name NOT LIKE 't%' OR substr(r.name, 2) = ANY (p_kinds);
    END IF;
    IF p_early THEN
        RETURN QUERY SELECT r.* FROM unnest(p_order) p(n), LATERAL (
            SELECT j.number, j.priority, j.at, j.place, j.held_by, j.key, true FROM job j
            WHERE j.queue = p_queue.id AND j.state = 'ready' AND j.priority = p.n AND j.at > p_now AND j.at <= p_due_by
                AND (p_kinds IS NULL OR j.kind = ANY (p_kinds))
            ORDER BY j.at, id_of(j.name, j.number) COLLATE "C" LIMIT p_looks) r;
    END IF;
END $$;

-- The jobs behind the ones that it looked at, if other calls have locked some of these.
CREATE FUNCTION look_behind(p_queue queue, p_floors bigint[], p_order int[], p_looks int, p_kinds text[], p_due_by bigint, p_now bigint, p_looked bigint[])
RETURNS TABLE (number bigint, priority smallint, at bigint, place bigint, held_by text, key text, own boolean) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT r.* FROM unnest(p_order) p(n), LATERAL (
        SELECT j.number, j.priority, j.at, j.place, j.held_by, j.key, true FROM job j
        WHERE j.queue = p_queue.id AND j.state = 'ready' AND j.priority = p.n AND j.at <= p_now AND j.at >= p_floors[p.n + 1]
            AND (p_due_by IS NULL OR p_due_by >= p_now OR j.due <= p_due_by) AND (p_kinds IS NULL OR j.kind = ANY (p_kinds))
            AND (j.expires IS NULL OR j.expires > p_now) AND j.number <> ALL (p_looked)
        ORDER BY j.at, j.place LIMIT p_looks FOR UPDATE SKIP LOCKED) r LIMIT p_looks;
END $$;

-- What a claim has found: its room after that, what it takes (with jobs of other kinds) and tells, the limits that it
-- looked at, the jobs to hold with their limits, and how many it saw.
CREATE TYPE finds AS (room room, claiming claiming, rung text[], hold bigint[], hold_names text[], looked int);

-- Looks at jobs in order, takes those that may run, and ends the needless ones.
CREATE FUNCTION find_jobs(p_queue queue, p_floors bigint[], p_order int[], p_kinds text[], p_due_by bigint, p_now bigint, p_early boolean,
    p_looks int, p_room room, p_claiming claiming, p_rung text[], p_lines text[], p_worker text) RETURNS finds LANGUAGE plpgsql AS $$
DECLARE
    v_row record;
    v_looked bigint[] := '{}';
    v_locked boolean := false;
    v_job job;
    v_taken room;
    v_hold bigint[] := '{}';
    v_hold_names text[] := '{}';
    v_needless record;
BEGIN
    <<looks>>
    FOR v_pass IN 1 .. 2 LOOP
        FOR v_row IN
            SELECT l.number, l.at, l.held_by, 'k' || l.key AS name, l.own FROM (
                SELECT * FROM look_for(p_queue, p_floors, p_order, p_looks, p_room.most, p_kinds, p_due_by, p_now, p_early, p_rung || p_lines) WHERE v_pass = 1
                UNION ALL SELECT * FROM look_behind(p_queue, p_floors, p_order, p_looks, p_kinds, p_due_by, p_now, v_looked) WHERE v_pass = 2) l
            -- Jobs not due yet have their own order, as in `claim_early`.
            ORDER BY l.at > p_now, CASE WHEN l.at <= p_now THEN array_position(p_order, l.priority::int) END, l.at,
                CASE WHEN l.at > p_now THEN (SELECT id_of(j.name, j.number) FROM job j WHERE j.number = l.number) END COLLATE "C", l.place
        LOOP
            v_looked := v_looked || v_row.number;
            IF NOT v_row.own THEN
                p_claiming.others := p_claiming.others || v_row.number;
                CONTINUE;
            END IF;
            -- With rates, a held job also keeps others from its tokens.
            IF p_room.places[array_position(p_room.names, v_row.name)] <= 0 AND v_row.at <= p_now AND p_room.sorts NOT LIKE '%r%' THEN
                CONTINUE WHEN v_row.held_by = v_row.name;
                IF v_row.held_by IS NULL THEN
                    v_hold := v_hold || v_row.number;
                    v_hold_names := v_hold_names || v_row.name;
                    CONTINUE;
                END IF;
            END IF;
            SELECT * INTO v_job FROM job WHERE number = v_row.number AND state IN ('ready', 'held') FOR UPDATE SKIP LOCKED;
            v_locked := v_locked OR NOT FOUND;
            -- A push may have moved it to a later time since the look.
            CONTINUE WHEN NOT FOUND OR v_job.at > greatest(v_row.at, p_now);
            CONTINUE WHEN CASE WHEN v_job.suspect THEN is_others(v_job.worker, v_job.alone_until, p_worker, p_queue.lease, p_now)
                ELSE p_room.is_alone END;
            p_room := look_at_limits(p_queue.id, v_job, p_room, p_now);
            IF p_room.full_by IS NOT NULL THEN
                CONTINUE WHEN v_job.at > p_now;
                IF v_job.state = 'ready' OR v_job.held_by <> p_room.full_by THEN
                    v_hold := v_hold || v_row.number;
                    v_hold_names := v_hold_names || p_room.full_by;
                END IF;
                -- Tokens come without the end of a job, so this doorbell has a time.
                IF p_room.full_by <> ALL (p_rung) THEN p_rung := p_rung || p_room.full_by; END IF;
                CONTINUE;
            END IF;
            IF coalesce(v_job.expires, v_job.root_at, v_job.skips_from) IS NOT NULL THEN
                v_needless := needless(v_job, p_now);
                IF coalesce(v_needless.error, v_needless.skipped) IS NOT NULL THEN
                    p_claiming.told := p_claiming.told || end_unrun(p_queue, v_job, v_needless.error, v_needless.skipped, p_now);
                    p_claiming.again := true;
                    CONTINUE;
                END IF;
            END IF;
            -- Running jobs of its process end first, and no other begins there meanwhile.
            EXIT looks WHEN v_job.suspect AND cardinality(p_claiming.numbers) > 0;
            IF v_job.suspect AND (is_busy(p_queue.id, p_worker)
                OR NOT pg_try_advisory_xact_lock(lock_of('plain ' || coalesce(p_worker, ''), p_queue.id))) THEN
                UPDATE job SET worker = p_worker, alone_until = p_now + p_queue.lease
                WHERE job.number = v_row.number AND coalesce(job.alone_until, 0) <= p_now;
                EXIT looks;
            END IF;
            v_taken := take_places(p_queue.id, v_job, p_room, p_now);
            EXIT looks WHEN v_taken.names IS NULL;
            p_room := v_taken;
            p_claiming.numbers := p_claiming.numbers || v_row.number;
            EXIT looks WHEN cardinality(p_claiming.numbers) = p_room.most OR v_job.suspect;
        END LOOP;
        -- Locked jobs must not hide the ones behind them. (Jobs of other kinds go into their lines first, so not all
        -- are read.)
        EXIT WHEN NOT v_locked OR cardinality(v_looked) < p_looks OR cardinality(p_claiming.others) > 0;
    END LOOP;
    RETURN ROW(p_room, p_claiming, p_rung, v_hold, v_hold_names, cardinality(v_looked))::finds;
END $$;

-- Claims jobs. `p_freed`: limits with places that the caller's own ends left.
CREATE FUNCTION claim_limited(p_queue queue, p_most int, p_worker text, p_kinds text[], p_due_by bigint, p_now bigint, p_early boolean,
    p_freed text[]) RETURNS claiming LANGUAGE plpgsql AS $$
DECLARE
    -- It looks at more than it takes, to hold jobs that later claims then skip. With rates these are held one by one
    -- (`hold_behind` does nothing), so a claim of one job holds more of them.
    v_looks int := least(256, CASE WHEN p_queue.limit_sorts LIKE '%r%' THEN 32 ELSE 4 END + 8 * p_most);
    v_turns bigint := coalesce(pg_sequence_last_value(p_queue.turns), 0);
    v_order int[] := CASE WHEN v_turns % 8 = 7 THEN '{3,2,1,0}' ELSE '{0,1,2,3}' END;
    v_room room;
    v_rung text[] := p_freed;
    v_finds finds;
    v_claiming claiming;
    v_floors bigint[];
    v_is_dear boolean;
    v_passed bigint;
BEGIN
    PERFORM check_isolation('a claim of a queue with limits');
    PERFORM pg_advisory_xact_lock(lock_of('claim', p_queue.id));
    -- It hears bells that rang while it waited. With the lock, it sees either the old limits or the new ones.
    p_now := greatest(p_now, clock());
    v_floors := looks_from(p_queue.floors, 7, 5000, p_now);
    v_is_dear := is_dear(p_queue.floors, 7, p_now);
    v_passed := passed_ready();
    IF cardinality(p_freed) > 0 AND p_queue.limit_sorts !~ '[qrt]' AND NOT p_early AND coalesce(p_due_by >= p_now, true)
        AND NOT (has_lines(p_queue.floors, p_now) AND lines_of(p_queue.id, p_kinds) IS NOT NULL) THEN
        SELECT h.numbers, NULL, false, '{}', false, h.is_all, NULL, false INTO v_claiming
        FROM hand_on(p_queue, v_floors, v_order, p_most, p_worker, p_kinds, p_freed, p_now) h;
    END IF;
    IF coalesce(cardinality(v_claiming.numbers), 0) = 0 THEN
        v_room := room_of(p_queue.id, p_most, p_worker, p_now);
        v_claiming := ROW('{}'::bigint[], NULL, v_room.sorts LIKE '%c%', '{}'::answer[], false, false, '{}'::bigint[], false);
        IF v_room.most <= 0 THEN
            INSERT INTO freed (queue, at, name) SELECT p_queue.id, p_now, n FROM unnest(p_freed) n;
            RETURN v_claiming;
        END IF;
        IF v_room.is_rung THEN v_rung := take_bells(p_queue.id, p_freed, p_now); END IF;
        IF v_claiming.counted AND 'c' = ANY (v_rung) THEN
            INSERT INTO freed (queue, at, name) SELECT p_queue.id, p_now, 'c' WHERE count_running(p_queue.id);
        END IF;
        IF EXISTS (SELECT FROM unnest(v_rung) n WHERE n LIKE 'h%') THEN v_rung := ring_held(p_queue.id, v_rung, p_now); END IF;
        v_finds := find_jobs(p_queue, v_floors, v_order, p_kinds, p_due_by, p_now, p_early, v_looks, v_room, v_claiming, v_rung,
            coalesce(CASE WHEN has_lines(p_queue.floors, p_now) THEN lines_of(p_queue.id, p_kinds) END, '{}'), p_worker);
        v_claiming := v_finds.claiming;
        IF cardinality(v_claiming.others) > 0 THEN
            PERFORM put_in_lines(p_queue.id, p_queue.floors, p_queue.bell, v_claiming.others, p_now);
            v_claiming.lined := true;
        END IF;
        IF cardinality(v_finds.hold) > 0 THEN
            v_claiming.told := v_claiming.told || hold_jobs(v_finds.hold, v_finds.hold_names, p_now);
        END IF;
        -- While more jobs have to be held, free slots must not wait for the end of a job: later looks skip the held
        -- ones. (Others may be locked for long.)
        IF cardinality(v_finds.hold) > 0 AND v_finds.looked >= v_looks AND cardinality(v_claiming.numbers) < v_room.most THEN
            PERFORM hold_behind(p_queue.id, v_floors, v_finds.room, p_now);
            v_claiming.again := true;
        END IF;
        PERFORM ring_room(p_queue.id, v_finds.rung, v_finds.room, v_claiming.numbers, p_now);
        v_claiming.again := v_claiming.again
            OR (cardinality(v_claiming.numbers) = 0 AND cardinality(v_claiming.others) > 0 AND v_finds.looked >= v_looks);
    END IF;
    v_passed := passed_ready() - v_passed;
    IF NOT v_is_dear AND is_much(v_passed) THEN PERFORM note_look(p_queue.floors, 7, v_passed, p_now); END IF;
    -- This counts calls: every eighth takes priorities in reverse, however many jobs each claims.
    IF cardinality(v_claiming.numbers) > 0 THEN
        v_turns := nextval(p_queue.turns);
        v_claiming.spots := ARRAY(SELECT ctid FROM job WHERE number = ANY (v_claiming.numbers));
    END IF;
    RETURN v_claiming;
END $$;

-- The common claim if only keys have limits, after ends that freed places: it hands these to the first jobs that the
-- limits hold, and returns them. None: other jobs may come first, or need a close look. `is_all`: no other job may run
-- now.
CREATE FUNCTION hand_on(p_queue queue, p_floors bigint[], p_order int[], p_most int, p_worker text, p_kinds text[], p_freed text[], p_now bigint,
    OUT numbers bigint[], OUT is_all boolean) LANGUAGE plpgsql AS $$
DECLARE v_left text[];
BEGIN
    numbers := '{}';
    is_all := false;
    -- The state is compared as text for the reason given at `has_special`.
    IF EXISTS (SELECT FROM queue WHERE id = p_queue.id AND limit_sorts ~ '[qrt]')
        OR EXISTS (SELECT FROM freed WHERE queue = p_queue.id AND at <= p_now)
        OR EXISTS (SELECT FROM job WHERE queue = p_queue.id AND suspect)
            AND has_suspect(p_queue.id, p_worker, p_kinds, p_queue.lease, p_now, p_now)
        OR EXISTS (SELECT FROM job WHERE queue = p_queue.id AND NOT suspect AND at <= p_now AND state::text = 'held'
            AND (root IS NOT NULL OR skips_from IS NOT NULL))
        OR EXISTS (SELECT FROM unnest(p_order) p(n), LATERAL (SELECT FROM job j WHERE j.queue = p_queue.id AND j.state = 'ready'
            AND j.priority = p.n AND j.at <= p_now AND j.at >= p_floors[p.n + 1] ORDER BY j.at LIMIT 1) r) THEN
        RETURN;
    END IF;
    WITH room AS MATERIALIZED (
        SELECT f.name, coalesce(l.at_once, e.at_once) - (SELECT count(*) FROM job j
            WHERE j.queue = p_queue.id AND j.state = 'running' AND j.key = substr(f.name, 2)) AS places
        FROM unnest(p_freed) f(name) LEFT JOIN limits l ON l.queue = p_queue.id AND l.name = f.name
            LEFT JOIN limits e ON e.queue = p_queue.id AND e.name = 'e'
        WHERE f.name LIKE 'k%'
    ), found AS (
        SELECT h.* FROM room r, LATERAL (
            SELECT j.* FROM unnest(p_order) WITH ORDINALITY p(n, rank), LATERAL (
                SELECT r.name, p.rank, j.number, j.at, j.place, j.expires, j.kind FROM job j
                WHERE j.queue = p_queue.id AND j.state = 'held' AND j.held_by = r.name AND j.priority = p.n AND NOT j.suspect
                ORDER BY j.at, j.place LIMIT greatest(least(p_most, r.places), 0) FOR UPDATE SKIP LOCKED) j
            LIMIT greatest(least(p_most, r.places), 0)) h
        ORDER BY h.rank, h.at, h.place LIMIT p_most
    )
    SELECT coalesce(array_agg(f.number), '{}'), (SELECT array_agg(r.name) FROM room r
        WHERE coalesce(r.places > (SELECT count(*) FROM found o WHERE o.name = r.name), true))
    INTO numbers, v_left FROM found f HAVING NOT coalesce(bool_or(f.expires <= p_now OR f.at > p_now OR f.kind <> ALL (p_kinds)), false);
    IF numbers IS NULL THEN
        numbers := '{}';
    ELSIF cardinality(numbers) > 0 THEN
        is_all := v_left IS NULL;
        IF NOT is_all THEN PERFORM ring_later(p_queue.id, n, numbers, p_now) FROM unnest(v_left) n; END IF;
    END IF;
END $$;

-- Counts some running jobs that a call claimed before it knew of a kind's limit. True: there may be more.
CREATE FUNCTION count_running(p_queue int) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE c_most CONSTANT int := 1024; v_count int;
BEGIN
    UPDATE job SET counted = true WHERE number = ANY (ARRAY(
        SELECT number FROM job WHERE queue = p_queue AND state = 'running' AND NOT counted LIMIT c_most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count = c_most;
END $$;

-- Handles the bell `h` with a name: the held jobs of the limits after this name need another look. It takes some of
-- these limits now, and rings for the next ones later. Returns the limits of all bells, with these.
CREATE FUNCTION ring_held(p_queue int, p_rung text[], p_now bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 64;
    v_behind text := (SELECT min(substr(n, 2) COLLATE "C") FROM unnest(p_rung) n WHERE n LIKE 'h%');
    v_names text[];
BEGIN
    v_names := ARRAY(WITH RECURSIVE l(name, nth) AS (
            (SELECT j.held_by, 1 FROM job j WHERE j.queue = p_queue AND j.state = 'held' AND j.held_by > v_behind ORDER BY j.held_by LIMIT 1)
            UNION ALL SELECT (SELECT j.held_by FROM job j WHERE j.queue = p_queue AND j.state = 'held' AND j.held_by > l.name
                ORDER BY j.held_by LIMIT 1), nth + 1 FROM l WHERE l.name IS NOT NULL AND nth < c_most)
        SELECT l.name FROM l WHERE l.name IS NOT NULL ORDER BY l.nth);
    INSERT INTO freed (queue, at, name) SELECT p_queue, p_now, 'h' || v_names[c_most] WHERE cardinality(v_names) = c_most;
    RETURN ARRAY(SELECT n FROM unnest(p_rung) n WHERE n NOT LIKE 'h%' UNION SELECT n FROM unnest(v_names) n WHERE n NOT LIKE 'o%');
END $$;

-- Holds jobs behind those that a claim has looked at, if the limits of their keys are full: many in one statement, for
-- 20 ms. (With rates, a held job keeps others from its tokens, so jobs are looked at one by one.)
CREATE FUNCTION hold_behind(p_queue int, p_floors bigint[], p_room room, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 1024;
    v_until timestamptz := clock_timestamp() + interval '20 ms';
    v_keys text[] := ARRAY(SELECT substr(u.name, 2) FROM unnest(p_room.names, p_room.places) u(name, places)
        WHERE u.places <= 0 AND u.name LIKE 'k%');
    v_held int;
BEGIN
    IF cardinality(v_keys) = 0 OR p_room.sorts LIKE '%r%' THEN RETURN; END IF;
    LOOP
        UPDATE job SET state = 'held', held_by = 'k' || key WHERE number = ANY (ARRAY(
            SELECT h.number FROM job h WHERE h.number = ANY (ARRAY(
                SELECT r.number FROM unnest('{0,1,2,3}'::int[]) p(n), LATERAL (SELECT j.number, j.key FROM job j
                    WHERE j.queue = p_queue AND j.state = 'ready' AND j.priority = p.n AND j.at <= p_now AND j.at >= p_floors[p.n + 1]
                    ORDER BY j.at, j.place LIMIT c_most) r WHERE r.key = ANY (v_keys)))
            AND h.state::text = 'ready' AND h.at <= p_now FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS v_held = ROW_COUNT;
        EXIT WHEN v_held < c_most / 2 OR clock_timestamp() >= v_until;
    END LOOP;
END $$;

-- Lets limits hold these jobs, unless they are due later by now.
CREATE FUNCTION hold_jobs(p_numbers bigint[], p_names text[], p_now bigint) RETURNS answer[] LANGUAGE plpgsql AS $$
DECLARE v_told answer[];
BEGIN
    WITH held AS (
        UPDATE job j SET state = 'held', held_by = h.name FROM unnest(p_numbers, p_names) h(number, name),
            LATERAL (SELECT o.state FROM job o WHERE o.number = h.number LIMIT 1) o
        WHERE j.number = h.number AND h.name IN ('k' || j.key, 't' || j.kind) AND j.number = ANY (ARRAY(
            SELECT number FROM job WHERE number = ANY (p_numbers) AND state IN ('ready', 'held') AND at <= p_now FOR UPDATE SKIP LOCKED))
        RETURNING j.number, j.name, j.kind, j.failures, j.held_by, j.at, j.place, o.state AS was)
    SELECT coalesce(array_agg(line('held', id_of(name, number), kind, failures, held_by) ORDER BY at, place) FILTER (WHERE was = 'ready'), '{}')
    INTO v_told FROM held;
    RETURN v_told;
END $$;

-- Rings again for limits that still have held jobs besides those that begin. If a limit is full, the end of a job
-- rings.
CREATE FUNCTION ring_room(p_queue int, p_names text[], p_room room, p_begin bigint[], p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_name text;
BEGIN
    FOREACH v_name IN ARRAY p_names LOOP
        IF coalesce(p_room.places[array_position(p_room.names, v_name)], 1) > 0 THEN PERFORM ring_later(p_queue, v_name, p_begin, p_now); END IF;
    END LOOP;
END $$;
