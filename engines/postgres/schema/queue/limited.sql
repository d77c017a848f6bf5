-- Claims of a queue with limits, or with jobs that may be needless or are to run alone.

-- How many jobs a claim has taken, what happened, and if another claim at once may find others.
CREATE TYPE claiming AS (claimed int, told answer[], again boolean);

-- Claims jobs of a queue with limits, or with jobs that may be needless, or one that is to run alone.
-- `p_freed` are limits that the caller's own ends have left.
-- One claim of a queue at a time: the lock is held to the end of the transaction, and each statement
-- behind it sees all claims from before.
CREATE FUNCTION claim_limited(p_queue queue, p_most int, p_kinds text[], p_due_by bigint, p_lease bigint, p_worker text,
    p_now bigint, p_early boolean, p_freed text[]) RETURNS claiming LANGUAGE plpgsql AS $$
DECLARE
    v_claimed int := 0;
    v_told answer[] := '{}';
    v_again boolean := false;
    -- A look at more than it takes is for those that are held, which no later claim looks at.
    v_looks int := least(256, 32 + 8 * p_most);
    v_sorts text;
    v_rates boolean;
    v_is_full boolean;
    v_is_rung boolean;
    v_turns bigint := coalesce(pg_sequence_last_value(p_queue.turns), 0);
    v_order int[] := CASE WHEN v_turns % 8 = 7 THEN '{3,2,1,0}' ELSE '{0,1,2,3}' END;
    v_floor bigint[];
    v_all limits;
    v_each limits;
    v_most int := p_most;
    v_rung text[] := p_freed;
    v_awaited text[] := '{}';
    v_later text[] := '{}';
    -- The limits that have no place any more.
    v_filled text[] := '{}';
    v_fills text[];
    v_more bigint[] := '{}';
    -- Those that are to be held, and by which limit.
    v_hold bigint[] := '{}';
    v_hold_names text[] := '{}';
    v_row record;
    v_looked int := 0;
    v_job job;
    v_name text;
    v_full text;
    v_at bigint;
    v_taken bigint;
    v_limit limits;
    v_bucket bucket;
    v_error text;
    v_skipped text;
    v_answer answer;
BEGIN
    PERFORM pg_advisory_xact_lock(lock_of('claim', p_queue.id));
    -- Bells that rang while it waited are to be heard.
    p_now := greatest(p_now, clock());
    -- Behind the lock: so each claim goes by the old limits, or by the new ones.
    SELECT q.limit_sorts, EXISTS (SELECT FROM job j WHERE j.queue = q.id AND j.suspect AND j.state = 'running'),
        EXISTS (SELECT FROM freed f WHERE f.queue = q.id AND f.at <= p_now)
    INTO v_sorts, v_is_full, v_is_rung FROM queue q WHERE q.id = p_queue.id;
    v_rates := v_sorts LIKE '%r%';
    IF v_sorts LIKE '%q%' AND NOT v_is_full THEN
        v_all := bounds_of(p_queue.id, 'q');
        IF v_all.at_once IS NOT NULL THEN v_most := least(p_most, v_all.at_once - taken_of(p_queue.id, 'q')); END IF;
        v_is_full := v_most <= 0;
    END IF;
    IF v_is_full THEN
        IF cardinality(p_freed) > 0 THEN
            INSERT INTO freed (queue, at, name) SELECT p_queue.id, p_now, n FROM unnest(p_freed) n;
        END IF;
        RETURN ROW(0, v_told, false);
    END IF;
    IF v_sorts LIKE '%e%' THEN v_each := bounds_of(p_queue.id, 'e'); END IF;
    -- The first held jobs of each limit that may have a place by now.
    IF v_is_rung THEN
        WITH rung AS (
            DELETE FROM freed WHERE id = ANY (ARRAY(SELECT id FROM freed WHERE queue = p_queue.id AND at <= p_now
                ORDER BY at, id LIMIT 256 FOR UPDATE SKIP LOCKED))
            RETURNING name)
        SELECT coalesce(array_agg(DISTINCT n.name), '{}') INTO v_rung
        FROM (SELECT name FROM rung UNION ALL SELECT unnest(p_freed)) n(name);
    END IF;
    IF cardinality(v_rung) > 0 THEN
        v_more := ARRAY(SELECT h.number FROM unnest(v_rung) r(name), LATERAL (
            SELECT j.number FROM unnest(v_order) p(n), LATERAL (
                SELECT number FROM job WHERE queue = p_queue.id AND state = 'held' AND held_by = r.name AND priority = p.n
                    AND (p_kinds IS NULL OR kind = ANY (p_kinds)) ORDER BY at, place LIMIT v_most) j LIMIT v_most) h);
    END IF;
    IF p_early THEN
        v_more := v_more || ARRAY(SELECT r.number FROM unnest(v_order) p(n), LATERAL (
            SELECT number FROM job WHERE queue = p_queue.id AND state = 'ready' AND priority = p.n AND at > p_now AND at <= p_due_by
                AND (p_kinds IS NULL OR kind = ANY (p_kinds))
            ORDER BY at, id_of(name, number) COLLATE "C" LIMIT v_looks) r);
    END IF;
    v_floor := ARRAY[pg_sequence_last_value(p_queue.floors[1]), pg_sequence_last_value(p_queue.floors[2]),
        pg_sequence_last_value(p_queue.floors[3]), pg_sequence_last_value(p_queue.floors[4])];
    FOR v_row IN
        SELECT x.number, x.at, x.held_by, 'k' || x.key AS name FROM (
            SELECT r.* FROM unnest(v_order) p(n), LATERAL (
                SELECT number, priority, at, place, held_by, key FROM job
                WHERE queue = p_queue.id AND state = 'ready' AND priority = p.n AND at <= p_now AND at >= v_floor[p.n + 1] - 5000
                    AND (p_due_by IS NULL OR p_due_by >= p_now OR due <= p_due_by) AND (p_kinds IS NULL OR kind = ANY (p_kinds))
                ORDER BY at, place LIMIT v_looks) r
            UNION ALL SELECT number, priority, at, place, held_by, key FROM job
            WHERE number = ANY (v_more) AND (p_due_by IS NULL OR p_due_by >= p_now OR due <= p_due_by)) x
        -- Those that are not due yet have an order of their own.
        ORDER BY x.at > p_now, CASE WHEN x.at <= p_now THEN array_position(v_order, x.priority::int) END, x.at, x.place
    LOOP
        v_looked := v_looked + 1;
        -- With rates, a job that is held also keeps others from its tokens.
        IF v_row.name = ANY (v_filled) AND v_row.at <= p_now AND NOT v_rates THEN
            CONTINUE WHEN v_row.held_by = v_row.name;
            IF v_row.held_by IS NULL THEN
                v_hold := v_hold || v_row.number;
                v_hold_names := v_hold_names || v_row.name;
                CONTINUE;
            END IF;
        END IF;
        SELECT * INTO v_job FROM job WHERE number = v_row.number AND state IN ('ready', 'held') FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        v_full := NULL;
        v_at := NULL;
        v_fills := '{}';
        FOREACH v_name IN ARRAY ARRAY['k' || v_job.key, 't' || v_job.kind] LOOP
            CONTINUE WHEN v_name IS NULL;
            v_limit := CASE WHEN left(v_name, 1) = 'k' AND v_sorts NOT LIKE '%k%' THEN v_each
                WHEN v_sorts LIKE '%' || left(v_name, 1) || '%' THEN bounds_of(p_queue.id, v_name) END;
            CONTINUE WHEN v_limit.queue IS NULL;
            IF v_limit.at_once IS NOT NULL THEN
                v_taken := taken_of(p_queue.id, v_name);
                IF v_taken >= v_limit.at_once THEN
                    v_full := coalesce(v_full, v_name);
                    v_filled := v_filled || v_name;
                    CONTINUE;
                ELSIF v_taken + 1 = v_limit.at_once THEN
                    v_fills := v_fills || v_name;
                END IF;
            END IF;
            IF v_limit.rate_count IS NOT NULL THEN
                v_bucket := bucket_of(v_limit, v_name, p_now);
                v_at := greatest(v_at, tokens_at(v_limit, v_bucket, v_job.cost));
                -- A later job that costs less does not overtake one that waits for tokens.
                IF v_name = ANY (v_awaited) OR v_at > p_now THEN
                    v_full := coalesce(v_full, v_name);
                    v_awaited := v_awaited || v_name;
                END IF;
            END IF;
        END LOOP;
        IF v_full IS NOT NULL THEN
            CONTINUE WHEN v_job.at > p_now;
            IF v_job.state = 'ready' THEN
                v_hold := v_hold || v_row.number;
                v_hold_names := v_hold_names || v_full;
            ELSIF v_job.held_by <> v_full THEN
                UPDATE job SET held_by = v_full WHERE number = v_row.number;
            END IF;
            -- A token comes without an end, so its doorbell has a time.
            IF NOT v_full = ANY (v_later) THEN v_later := v_later || v_full; END IF;
            CONTINUE;
        END IF;
        IF coalesce(v_job.expires, v_job.root_at, v_job.skips_from) IS NOT NULL THEN
            SELECT n.error, n.skipped INTO v_error, v_skipped FROM needless(v_job, p_now) n;
            IF v_error IS NOT NULL OR v_skipped IS NOT NULL THEN
                v_told := v_told || end_unrun(p_queue, v_job, v_error, v_skipped, p_now);
                v_again := true;
                CONTINUE;
            END IF;
        END IF;
        IF v_job.suspect AND (v_claimed > 0 OR taken_of(p_queue.id, 'q') > 0) THEN
            -- Those that run end first, and nobody begins meanwhile.
            EXIT;
        END IF;
        IF v_all.rate_count IS NOT NULL THEN
            v_bucket := bucket_of(v_all, 'q', p_now);
            EXIT WHEN tokens_at(v_all, v_bucket, v_job.cost) > p_now;
            PERFORM take_tokens(v_bucket, v_job.cost);
        END IF;
        IF v_rates THEN
            FOREACH v_name IN ARRAY ARRAY['k' || v_job.key, 't' || v_job.kind] LOOP
                v_limit := bounds_of(p_queue.id, v_name);
                IF v_limit.rate_count IS NOT NULL THEN
                    PERFORM take_tokens(bucket_of(v_limit, v_name, p_now), v_job.cost);
                END IF;
            END LOOP;
        END IF;
        UPDATE job j SET state = 'running', token = (random() * 9007199254740991)::bigint + 1, at = p_now + p_lease,
            since = p_now, place = nextval('place'), worker = p_worker, expires = NULL, held_by = NULL,
            counted = v_sorts LIKE '%c%', resubmit = CASE WHEN j.resubmit > p_now THEN j.resubmit END,
            fingerprint = CASE WHEN j.uniq_until = 'c' AND j.skips_from IS NULL THEN NULL ELSE j.fingerprint END,
            uniq = CASE WHEN j.uniq_until = 'c' THEN NULL ELSE j.uniq END, uniq_until = nullif(j.uniq_until, 'c')
        WHERE j.number = v_row.number
        RETURNING 'claimed', j.number, id_of(j.name, j.number), v_claimed + 1, NULL, j.token, j.kind, j.payload, j.data, j.error, j.failures,
            j.crashes, j.pushed, j.due, j.since, j.priority::int,
            more_of(j.key, j.resubmit, j.root, j.root_at, j.cost, j.meta, j.noted) INTO v_answer;
        v_told := v_told || v_answer;
        v_claimed := v_claimed + 1;
        v_filled := v_filled || v_fills;
        EXIT WHEN v_claimed = v_most OR v_job.suspect;
    END LOOP;
    IF cardinality(v_hold) > 0 THEN
        WITH held AS (
            UPDATE job j SET state = 'held', held_by = h.name FROM unnest(v_hold, v_hold_names) h(number, name)
            WHERE j.number = h.number AND h.name IN ('k' || j.key, 't' || j.kind) AND j.number = ANY (ARRAY(
                SELECT number FROM job WHERE number = ANY (v_hold) AND state = 'ready' FOR UPDATE SKIP LOCKED))
            RETURNING j.number, j.name, j.kind, j.failures, j.held_by, j.at, j.place)
        SELECT v_told || coalesce(array_agg(line('held', id_of(name, number), kind, failures, held_by) ORDER BY at, place), '{}')
        INTO v_told FROM held;
    END IF;
    -- Held jobs stay behind each bell that was taken. If their limit is full, the end of a job rings.
    FOREACH v_name IN ARRAY v_rung || v_later LOOP
        CONTINUE WHEN v_name = ANY (v_filled);
        PERFORM ring_later(p_queue.id, v_name, p_now);
        -- Once is enough.
        v_filled := v_filled || v_name;
    END LOOP;
    -- Those that are held now are in no later look. (Others may be locked by somebody for long.)
    v_again := v_again OR (v_claimed = 0 AND cardinality(v_hold) > 0 AND v_looked >= v_looks);
    -- Calls are counted here, so one in eight is the other way round, however many jobs each takes.
    IF v_claimed > 0 THEN v_turns := setval(p_queue.turns, v_turns + 1); END IF;
    RETURN ROW(v_claimed, v_told, v_again);
END $$;
