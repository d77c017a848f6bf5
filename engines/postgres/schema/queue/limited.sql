-- Claims of a queue with limits, or with jobs that may be needless or are to run alone.
--
-- One claim of such a queue at a time: the lock is held to the end of the transaction, and each statement
-- behind it sees all claims from before.

-- The jobs that a claim takes, in their order: the caller begins them. `counted`: they take places in limits of
-- kinds. `again`: another claim at once may find others.
CREATE TYPE claiming AS (numbers bigint[], counted boolean, told answer[], again boolean);

-- What a claim knows of the limits: their sorts, those of the queue and of each key, the jobs that it may take at
-- most, and if bells rang. For each limit that it has looked at, `names` and `places` have how many places it has
-- left (null: any number). `awaited` are those of which a job waits for tokens, and `full_by` is the one that has
-- held the last job.
CREATE TYPE room AS (sorts text, of_all limits, of_each limits, most int, is_rung boolean,
    names text[], places int[], awaited text[], full_by text);

CREATE FUNCTION room_of(p_queue int, p_most int, p_now bigint) RETURNS room LANGUAGE plpgsql AS $$
DECLARE v_room room; v_is_alone boolean;
BEGIN
    SELECT q.limit_sorts, EXISTS (SELECT FROM freed f WHERE f.queue = q.id AND f.at <= p_now),
        EXISTS (SELECT FROM job j WHERE j.queue = q.id AND j.suspect AND j.state = 'running')
    INTO v_room.sorts, v_room.is_rung, v_is_alone FROM queue q WHERE q.id = p_queue;
    v_room.most := CASE WHEN v_is_alone THEN 0 ELSE p_most END;
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

-- Looks if the limits of a job have a place for it, and tokens: `full_by` is the first one that has not.
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
            -- A later job that costs less does not overtake one that waits for tokens.
            IF v_name = ANY (p_room.awaited) OR v_at > p_now THEN
                p_room.full_by := coalesce(p_room.full_by, v_name);
                p_room.awaited := p_room.awaited || v_name;
            END IF;
        END IF;
    END LOOP;
    RETURN p_room;
END $$;

-- Takes the places of a job in its limits, and its tokens. Null: the rate of the queue has none.
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

-- Takes the doorbells that have rung by now, and returns their limits and those of the caller.
CREATE FUNCTION take_bells(p_queue int, p_freed text[], p_now bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE v_rung text[];
BEGIN
    WITH rung AS (
        DELETE FROM freed WHERE id = ANY (ARRAY(SELECT id FROM freed WHERE queue = p_queue AND at <= p_now
            ORDER BY at, id LIMIT 256 FOR UPDATE SKIP LOCKED))
        RETURNING name)
    SELECT coalesce(array_agg(DISTINCT n.name), '{}') INTO v_rung
    FROM (SELECT name FROM rung UNION ALL SELECT unnest(p_freed)) n(name);
    RETURN v_rung;
END $$;

-- The jobs that a claim looks at: the first ready ones of each priority, the first held ones of each limit that may
-- have a place by now, and (`p_early`) those that are due by a time to come.
CREATE FUNCTION look_for(p_queue queue, p_order int[], p_looks int, p_most int, p_kinds text[], p_due_by bigint, p_now bigint,
    p_early boolean, p_rung text[]) RETURNS TABLE (number bigint, priority smallint, at bigint, place bigint, held_by text, key text)
LANGUAGE plpgsql AS $$
DECLARE v_floor bigint[] := floors_of(p_queue.floors);
BEGIN
    RETURN QUERY SELECT r.* FROM unnest(p_order) p(n), LATERAL (
        SELECT j.number, j.priority, j.at, j.place, j.held_by, j.key FROM job j
        WHERE j.queue = p_queue.id AND j.state = 'ready' AND j.priority = p.n AND j.at <= p_now AND j.at >= v_floor[p.n + 1] - 5000
            AND (p_due_by IS NULL OR p_due_by >= p_now OR j.due <= p_due_by) AND (p_kinds IS NULL OR j.kind = ANY (p_kinds))
        ORDER BY j.at, j.place LIMIT p_looks) r;
    IF cardinality(p_rung) > 0 THEN
        RETURN QUERY SELECT h.* FROM unnest(p_rung) r(name), LATERAL (
            SELECT f.* FROM unnest(p_order) p(n), LATERAL (
                SELECT j.number, j.priority, j.at, j.place, j.held_by, j.key FROM job j
                WHERE j.queue = p_queue.id AND j.state = 'held' AND j.held_by = r.name AND j.priority = p.n
                    AND (p_due_by IS NULL OR p_due_by >= p_now OR j.due <= p_due_by) AND (p_kinds IS NULL OR j.kind = ANY (p_kinds))
                ORDER BY j.at, j.place LIMIT p_most) f LIMIT p_most) h;
    END IF;
    IF p_early THEN
        RETURN QUERY SELECT r.* FROM unnest(p_order) p(n), LATERAL (
            SELECT j.number, j.priority, j.at, j.place, j.held_by, j.key FROM job j
            WHERE j.queue = p_queue.id AND j.state = 'ready' AND j.priority = p.n AND j.at > p_now AND j.at <= p_due_by
                AND (p_kinds IS NULL OR j.kind = ANY (p_kinds))
            ORDER BY j.at, id_of(j.name, j.number) COLLATE "C" LIMIT p_looks) r;
    END IF;
END $$;

-- Those behind the ones that it has looked at, if somebody has locked some of them.
CREATE FUNCTION look_behind(p_queue queue, p_order int[], p_looks int, p_kinds text[], p_due_by bigint, p_now bigint, p_looked bigint[])
RETURNS TABLE (number bigint, priority smallint, at bigint, place bigint, held_by text, key text) LANGUAGE plpgsql AS $$
DECLARE v_numbers bigint[] := lock_ready(p_queue.id, p_order, floors_of(p_queue.floors), 5000, p_looks, p_kinds, p_due_by, p_now, p_looked, true);
BEGIN
    RETURN QUERY SELECT j.number, j.priority, j.at, j.place, j.held_by, j.key FROM job j WHERE j.number = ANY (v_numbers);
END $$;

-- Claims jobs. `p_freed` are limits that the caller's own ends have left.
CREATE FUNCTION claim_limited(p_queue queue, p_most int, p_kinds text[], p_due_by bigint, p_now bigint, p_early boolean,
    p_freed text[]) RETURNS claiming LANGUAGE plpgsql AS $$
DECLARE
    -- A look at more than it takes is for those that are held, which no later claim looks at.
    v_looks int := least(256, 32 + 8 * p_most);
    v_turns bigint := coalesce(pg_sequence_last_value(p_queue.turns), 0);
    v_order int[] := CASE WHEN v_turns % 8 = 7 THEN '{3,2,1,0}' ELSE '{0,1,2,3}' END;
    v_room room;
    v_rung text[] := p_freed;
    v_row record;
    v_looked bigint[] := '{}';
    v_locked boolean := false;
    v_job job;
    v_taken room;
    -- Those that are to be held, and by which limit.
    v_hold bigint[] := '{}';
    v_hold_names text[] := '{}';
    v_needless record;
    v_claiming claiming;
BEGIN
    PERFORM pg_advisory_xact_lock(lock_of('claim', p_queue.id));
    -- Bells that rang while it waited are to be heard. Behind the lock, it goes by the old limits, or by the new ones.
    p_now := greatest(p_now, clock());
    v_room := room_of(p_queue.id, p_most, p_now);
    v_claiming := ROW('{}'::bigint[], v_room.sorts LIKE '%c%', '{}'::answer[], false);
    IF v_room.most <= 0 THEN
        IF cardinality(p_freed) > 0 THEN
            INSERT INTO freed (queue, at, name) SELECT p_queue.id, p_now, n FROM unnest(p_freed) n;
        END IF;
        RETURN v_claiming;
    END IF;
    IF v_room.is_rung THEN v_rung := take_bells(p_queue.id, p_freed, p_now); END IF;
    <<looks>>
    FOR v_pass IN 1 .. 2 LOOP
        FOR v_row IN
            SELECT l.number, l.at, l.held_by, 'k' || l.key AS name FROM (
                SELECT * FROM look_for(p_queue, v_order, v_looks, v_room.most, p_kinds, p_due_by, p_now, p_early, v_rung) WHERE v_pass = 1
                UNION ALL SELECT * FROM look_behind(p_queue, v_order, v_looks, p_kinds, p_due_by, p_now, v_looked) WHERE v_pass = 2) l
            -- Those that are not due yet have an order of their own.
            ORDER BY l.at > p_now, CASE WHEN l.at <= p_now THEN array_position(v_order, l.priority::int) END, l.at, l.place
        LOOP
            v_looked := v_looked || v_row.number;
            -- With rates, a job that is held also keeps others from its tokens.
            IF v_room.places[array_position(v_room.names, v_row.name)] <= 0 AND v_row.at <= p_now AND v_room.sorts NOT LIKE '%r%' THEN
                CONTINUE WHEN v_row.held_by = v_row.name;
                IF v_row.held_by IS NULL THEN
                    v_hold := v_hold || v_row.number;
                    v_hold_names := v_hold_names || v_row.name;
                    CONTINUE;
                END IF;
            END IF;
            SELECT * INTO v_job FROM job WHERE number = v_row.number AND state IN ('ready', 'held') FOR UPDATE SKIP LOCKED;
            v_locked := v_locked OR NOT FOUND;
            CONTINUE WHEN NOT FOUND;
            v_room := look_at_limits(p_queue.id, v_job, v_room, p_now);
            IF v_room.full_by IS NOT NULL THEN
                CONTINUE WHEN v_job.at > p_now;
                IF v_job.state = 'ready' OR v_job.held_by <> v_room.full_by THEN
                    v_hold := v_hold || v_row.number;
                    v_hold_names := v_hold_names || v_room.full_by;
                END IF;
                -- A token comes without an end, so its doorbell has a time.
                IF v_room.full_by <> ALL (v_rung) THEN v_rung := v_rung || v_room.full_by; END IF;
                CONTINUE;
            END IF;
            IF coalesce(v_job.expires, v_job.root_at, v_job.skips_from) IS NOT NULL THEN
                v_needless := needless(v_job, p_now);
                IF coalesce(v_needless.error, v_needless.skipped) IS NOT NULL THEN
                    v_claiming.told := v_claiming.told || end_unrun(p_queue, v_job, v_needless.error, v_needless.skipped, p_now);
                    v_claiming.again := true;
                    CONTINUE;
                END IF;
            END IF;
            -- Those that run end first, and nobody begins meanwhile.
            EXIT looks WHEN v_job.suspect AND (cardinality(v_claiming.numbers) > 0 OR taken_of(p_queue.id, 'q') > 0);
            v_taken := take_places(p_queue.id, v_job, v_room, p_now);
            EXIT looks WHEN v_taken.names IS NULL;
            v_room := v_taken;
            v_claiming.numbers := v_claiming.numbers || v_row.number;
            EXIT looks WHEN cardinality(v_claiming.numbers) = v_room.most OR v_job.suspect;
        END LOOP;
        -- Jobs that somebody has locked do not hide those behind them.
        EXIT WHEN NOT v_locked OR cardinality(v_looked) < v_looks;
    END LOOP;
    IF cardinality(v_hold) > 0 THEN
        v_claiming.told := v_claiming.told || hold_jobs(v_hold, v_hold_names);
    END IF;
    PERFORM ring_room(p_queue.id, v_rung, v_room, v_claiming.numbers, p_now);
    -- Those that are held now are in no later look. (Others may be locked by somebody for long.)
    v_claiming.again := v_claiming.again
        OR (cardinality(v_claiming.numbers) = 0 AND cardinality(v_hold) > 0 AND cardinality(v_looked) >= v_looks);
    -- Calls are counted here, so one in eight is the other way round, however many jobs each takes.
    IF cardinality(v_claiming.numbers) > 0 THEN v_turns := nextval(p_queue.turns); END IF;
    RETURN v_claiming;
END $$;

-- Lets limits hold these jobs.
CREATE FUNCTION hold_jobs(p_numbers bigint[], p_names text[]) RETURNS answer[] LANGUAGE plpgsql AS $$
DECLARE v_told answer[];
BEGIN
    WITH held AS (
        UPDATE job j SET state = 'held', held_by = h.name FROM unnest(p_numbers, p_names) h(number, name),
            LATERAL (SELECT o.state FROM job o WHERE o.number = h.number LIMIT 1) o
        WHERE j.number = h.number AND h.name IN ('k' || j.key, 't' || j.kind) AND j.number = ANY (ARRAY(
            SELECT number FROM job WHERE number = ANY (p_numbers) AND state IN ('ready', 'held') FOR UPDATE SKIP LOCKED))
        RETURNING j.number, j.name, j.kind, j.failures, j.held_by, j.at, j.place, o.state AS was)
    SELECT coalesce(array_agg(line('held', id_of(name, number), kind, failures, held_by) ORDER BY at, place) FILTER (WHERE was = 'ready'), '{}')
    INTO v_told FROM held;
    RETURN v_told;
END $$;

-- Held jobs stay behind each bell that was taken, but for those that begin. If their limit is full, the end of a job rings.
CREATE FUNCTION ring_room(p_queue int, p_names text[], p_room room, p_begin bigint[], p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_name text;
BEGIN
    FOREACH v_name IN ARRAY p_names LOOP
        IF coalesce(p_room.places[array_position(p_room.names, v_name)], 1) > 0 THEN PERFORM ring_later(p_queue, v_name, p_begin, p_now); END IF;
    END LOOP;
END $$;
