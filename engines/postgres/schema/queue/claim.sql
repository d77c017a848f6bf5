-- Claims: the jobs that may run now, in their order.

-- Claims up to `p_most` jobs that nothing limits.
CREATE FUNCTION claim_free(p_queue queue, p_most int, p_kinds text[], p_due_by bigint, p_lease bigint, p_worker text,
    p_now bigint) RETURNS SETOF job LANGUAGE plpgsql AS $$
DECLARE
    v_turns bigint := coalesce(pg_sequence_last_value(p_queue.turns), 0);
    -- Each eighth claim takes from the lowest priority, so that none starves.
    v_low int := ((v_turns + p_most) / 8 - v_turns / 8)::int;
    v_order int[] := '{0,1,2,3}';
    v_left int := p_most - v_low;
    v_got int;
    v_total int := 0;
    v_floor bigint[];
BEGIN
    -- Read before the statement: within it, the volatile function would be a filter and no bound.
    v_floor := ARRAY[pg_sequence_last_value(p_queue.floors[1]), pg_sequence_last_value(p_queue.floors[2]),
        pg_sequence_last_value(p_queue.floors[3]), pg_sequence_last_value(p_queue.floors[4])];
    FOR v_pass IN 0 .. 1 LOOP
        -- The second pass is that of the lowest priority, and takes what the first one has left, too.
        IF v_pass = 1 THEN
            v_left := p_most - v_total;
            v_order := CASE WHEN v_low > 0 THEN '{3,2,1,0}'::int[] ELSE v_order END;
        END IF;
        CONTINUE WHEN v_left = 0;
        RETURN QUERY WITH c AS (
            UPDATE job j SET state = 'running', token = (random() * 9007199254740991)::bigint + 1, at = p_now + p_lease,
                since = p_now, place = nextval('place'), worker = p_worker, expires = NULL,
                resubmit = CASE WHEN j.resubmit > p_now THEN j.resubmit END,
                fingerprint = CASE WHEN j.uniq_until = 'c' AND j.skips_from IS NULL THEN NULL ELSE j.fingerprint END,
                uniq = CASE WHEN j.uniq_until = 'c' THEN NULL ELSE j.uniq END,
                uniq_until = nullif(j.uniq_until, 'c')
            WHERE j.number = ANY (ARRAY(
                SELECT x.number FROM unnest(v_order) p(n), LATERAL (
                    SELECT r.number FROM job r
                    WHERE r.queue = p_queue.id AND r.state = 'ready' AND r.priority = p.n AND r.at <= p_now
                        -- A look that found nothing looks once more 5 s deeper: a late commit is there.
                        AND r.at >= v_floor[p.n + 1] - v_pass * 5000
                        AND (p_kinds IS NULL OR r.kind = ANY (p_kinds))
                        AND (p_due_by IS NULL OR p_due_by >= p_now OR r.due <= p_due_by)
                        AND (r.expires IS NULL OR r.expires > p_now)
                    ORDER BY r.at, r.place LIMIT v_left FOR UPDATE SKIP LOCKED) x
                LIMIT v_left))
            RETURNING j.*)
        SELECT * FROM c ORDER BY array_position(v_order, c.priority::int), c.place;
        GET DIAGNOSTICS v_got = ROW_COUNT;
        v_total := v_total + v_got;
        EXIT WHEN v_total = p_most;
    END LOOP;
    IF v_total > 0 THEN PERFORM setval(p_queue.turns, v_turns + v_total); END IF;
END $$;

-- The bounds of a limit: that of its name, or of each key.
CREATE FUNCTION bounds_of(p_queue int, p_name text) RETURNS limits LANGUAGE plpgsql AS $$
DECLARE v_limit limits;
BEGIN
    SELECT * INTO v_limit FROM limits WHERE queue = p_queue AND name = p_name;
    IF NOT FOUND AND left(p_name, 1) = 'k' THEN
        SELECT * INTO v_limit FROM limits WHERE queue = p_queue AND name = 'e';
    END IF;
    RETURN v_limit;
END $$;

-- The jobs that take a place in a limit.
CREATE FUNCTION taken_of(p_queue int, p_name text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE v_taken bigint;
BEGIN
    CASE left(p_name, 1)
    WHEN 'k' THEN
        SELECT count(*) INTO v_taken FROM job WHERE queue = p_queue AND state = 'running' AND key = substr(p_name, 2);
    WHEN 't' THEN
        SELECT count(*) INTO v_taken FROM job WHERE queue = p_queue AND counted AND kind = substr(p_name, 2);
    ELSE
        SELECT count(*) INTO v_taken FROM job WHERE queue = p_queue AND state = 'running';
    END CASE;
    RETURN v_taken;
END $$;

-- The tokens of a rate as they are now, in parts.
CREATE FUNCTION bucket_of(p_limit limits, p_name text, p_now bigint) RETURNS bucket LANGUAGE plpgsql AS $$
DECLARE v_bucket bucket;
BEGIN
    SELECT * INTO v_bucket FROM bucket WHERE queue = p_limit.queue AND name = p_name;
    IF NOT FOUND THEN
        v_bucket := (p_limit.queue, p_name, p_limit.rate_burst * p_limit.rate_per, p_limit.rate_per, p_now);
    END IF;
    IF v_bucket.unit <> p_limit.rate_per THEN
        -- The rate has changed since. Whole tokens stay.
        v_bucket.level := floor(v_bucket.level / v_bucket.unit) * p_limit.rate_per;
        v_bucket.unit := p_limit.rate_per;
    END IF;
    -- After a jump back of the clock, tokens come from then on.
    v_bucket.level := least(v_bucket.level + greatest(p_now - v_bucket.since, 0) * p_limit.rate_count * 1000000::numeric,
        p_limit.rate_burst * p_limit.rate_per + p_limit.rate_count * 1000000::numeric - 1);
    v_bucket.since := p_now;
    RETURN v_bucket;
END $$;

-- The time at which a rate has the tokens for a job of this cost. One that costs more than a full
-- bucket needs a full one, and leaves a debt.
CREATE FUNCTION tokens_at(p_limit limits, p_bucket bucket, p_cost int) RETURNS bigint LANGUAGE sql AS
$$ SELECT p_bucket.since + ceil(greatest(least(p_cost, p_limit.rate_burst) * p_limit.rate_per - p_bucket.level, 0)
    / (p_limit.rate_count * 1000000::numeric))::bigint $$;

-- The limits of a job, that of its key first. That of the queue holds no job.
CREATE FUNCTION names_of(p_queue int, p_key text, p_kind text) RETURNS text[] LANGUAGE sql AS
$$ SELECT ARRAY(
    SELECT 'k' || p_key WHERE p_key IS NOT NULL AND EXISTS (SELECT FROM limits l WHERE l.queue = p_queue AND l.name IN ('k' || p_key, 'e'))
    UNION ALL SELECT 't' || p_kind WHERE EXISTS (SELECT FROM limits l WHERE l.queue = p_queue AND l.name = 't' || p_kind)) $$;

-- True if a job that waits is not to be run, and why: it has expired, or others made it needless.
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

-- Claims jobs of a queue with limits, or with jobs that may be needless, or one that is to run alone.
-- One claim of a queue at a time: the lock is held to the end of the transaction, and each statement
-- behind it sees all claims from before.
CREATE FUNCTION claim_limited(p_queue queue, p_most int, p_kinds text[], p_due_by bigint, p_lease bigint, p_worker text,
    p_now bigint, p_early boolean, OUT jobs job[], OUT told answer[], OUT again boolean) LANGUAGE plpgsql AS $$
DECLARE
    c_looks CONSTANT int := 256;
    v_all limits := bounds_of(p_queue.id, 'q');
    v_counts boolean;
    v_turns bigint := coalesce(pg_sequence_last_value(p_queue.turns), 0);
    v_order int[] := CASE WHEN v_turns % 8 = 7 THEN '{3,2,1,0}' ELSE '{0,1,2,3}' END;
    v_floor bigint[];
    v_running bigint;
    v_most int := p_most;
    v_rung text[];
    v_awaited text[] := '{}';
    v_later text[] := '{}';
    v_held bigint[] := '{}';
    v_number bigint;
    v_looked int := 0;
    v_job job;
    v_names text[];
    v_name text;
    v_full text;
    v_at bigint;
    v_limit limits;
    v_bucket bucket;
    v_end record;
BEGIN
    jobs := '{}';
    told := '{}';
    again := false;
    PERFORM pg_advisory_xact_lock(lock_of('claim', p_queue.id));
    v_counts := EXISTS (SELECT FROM limits WHERE queue = p_queue.id AND at_once IS NOT NULL AND left(name, 1) = 't');
    IF EXISTS (SELECT FROM job WHERE queue = p_queue.id AND suspect AND state = 'running') THEN RETURN; END IF;
    SELECT count(*) INTO v_running FROM job WHERE queue = p_queue.id AND state = 'running';
    IF v_all.at_once IS NOT NULL THEN v_most := least(p_most, v_all.at_once - v_running); END IF;
    IF v_most <= 0 THEN RETURN; END IF;
    -- The first held jobs of each limit that may have a place by now.
    WITH rung AS (
        DELETE FROM freed WHERE id = ANY (ARRAY(
            SELECT id FROM freed WHERE queue = p_queue.id AND at <= p_now ORDER BY at, id LIMIT c_looks FOR UPDATE SKIP LOCKED))
        RETURNING name)
    SELECT coalesce(array_agg(DISTINCT name), '{}') INTO v_rung FROM rung;
    IF cardinality(v_rung) > 0 THEN
        SELECT coalesce(array_agg(h.number), '{}') INTO v_held FROM unnest(v_rung) r(name), LATERAL (
            SELECT j.number FROM unnest(v_order) p(n), LATERAL (
                SELECT number FROM job WHERE queue = p_queue.id AND state = 'held' AND held_by = r.name AND priority = p.n
                    AND (p_kinds IS NULL OR kind = ANY (p_kinds)) ORDER BY at, place LIMIT v_most) j LIMIT v_most) h;
    END IF;
    v_floor := ARRAY[pg_sequence_last_value(p_queue.floors[1]), pg_sequence_last_value(p_queue.floors[2]),
        pg_sequence_last_value(p_queue.floors[3]), pg_sequence_last_value(p_queue.floors[4])];
    FOR v_number IN
        SELECT x.number FROM (
            SELECT r.* FROM unnest(v_order) p(n), LATERAL (
                SELECT number, priority, at, place FROM job
                WHERE queue = p_queue.id AND state = 'ready' AND priority = p.n AND at <= p_now
                    AND (p_due_by IS NULL OR p_due_by >= p_now OR due <= p_due_by) AND at >= v_floor[p.n + 1] - 5000 AND (p_kinds IS NULL OR kind = ANY (p_kinds))
                ORDER BY at, place LIMIT c_looks) r
            UNION ALL SELECT r.* FROM unnest(v_order) p(n), LATERAL (
                SELECT number, priority, at, place FROM job
                WHERE p_early AND queue = p_queue.id AND state = 'ready' AND priority = p.n AND at > p_now AND at <= p_due_by
                    AND (p_kinds IS NULL OR kind = ANY (p_kinds))
                ORDER BY at, id_of(name, number) COLLATE "C" LIMIT c_looks) r
            UNION ALL SELECT number, priority, at, place FROM job
            WHERE number = ANY (v_held) AND (p_due_by IS NULL OR p_due_by >= p_now OR due <= p_due_by)) x
        -- Those that are not due yet have an order of their own.
        ORDER BY x.at > p_now, CASE WHEN x.at <= p_now THEN array_position(v_order, x.priority::int) END, x.at, x.place
    LOOP
        v_looked := v_looked + 1;
        SELECT * INTO v_job FROM job WHERE number = v_number AND state IN ('ready', 'held') FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        v_names := names_of(p_queue.id, v_job.key, v_job.kind);
        v_full := NULL;
        v_at := NULL;
        FOREACH v_name IN ARRAY v_names LOOP
            v_limit := bounds_of(p_queue.id, v_name);
            IF v_limit.at_once IS NOT NULL AND taken_of(p_queue.id, v_name) >= v_limit.at_once THEN
                v_full := coalesce(v_full, v_name);
            ELSIF v_limit.rate_count IS NOT NULL THEN
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
            IF v_job.state = 'ready' OR v_job.held_by IS DISTINCT FROM v_full THEN
                UPDATE job SET state = 'held', held_by = v_full WHERE number = v_number;
                IF v_job.state = 'ready' THEN
                    told := told || line('held', id_of(v_job.name, v_job.number), v_job.kind, v_job.failures, v_full);
                END IF;
            END IF;
            -- A token comes without an end, so its doorbell has a time.
            IF NOT v_full = ANY (v_later) THEN v_later := v_later || v_full; END IF;
            CONTINUE;
        END IF;
        v_end := needless(v_job, p_now);
        IF v_end.error IS NOT NULL OR v_end.skipped IS NOT NULL THEN
            told := told || end_unrun(p_queue, v_job, v_end.error, v_end.skipped, p_now);
            again := true;
            CONTINUE;
        END IF;
        IF v_job.suspect AND (v_running > 0 OR cardinality(jobs) > 0) THEN
            -- Those that run end first, and nobody begins meanwhile.
            EXIT;
        END IF;
        IF v_all.rate_count IS NOT NULL THEN
            v_bucket := bucket_of(v_all, 'q', p_now);
            EXIT WHEN tokens_at(v_all, v_bucket, v_job.cost) > p_now;
            PERFORM take_tokens(v_bucket, v_job.cost);
        END IF;
        FOREACH v_name IN ARRAY v_names LOOP
            v_limit := bounds_of(p_queue.id, v_name);
            IF v_limit.rate_count IS NOT NULL THEN
                PERFORM take_tokens(bucket_of(v_limit, v_name, p_now), v_job.cost);
            END IF;
        END LOOP;
        UPDATE job j SET state = 'running', token = (random() * 9007199254740991)::bigint + 1, at = p_now + p_lease,
            since = p_now, place = nextval('place'), worker = p_worker, expires = NULL, held_by = NULL,
            counted = v_counts, resubmit = CASE WHEN j.resubmit > p_now THEN j.resubmit END,
            fingerprint = CASE WHEN j.uniq_until = 'c' AND j.skips_from IS NULL THEN NULL ELSE j.fingerprint END,
            uniq = CASE WHEN j.uniq_until = 'c' THEN NULL ELSE j.uniq END, uniq_until = nullif(j.uniq_until, 'c')
        WHERE j.number = v_number RETURNING * INTO v_job;
        jobs := jobs || v_job;
        EXIT WHEN cardinality(jobs) = v_most OR v_job.suspect;
    END LOOP;
    -- Held jobs stay behind each bell that was taken.
    FOR v_name IN SELECT DISTINCT n FROM unnest(v_rung || v_later) n LOOP
        PERFORM ring_later(p_queue.id, v_name, p_now);
    END LOOP;
    again := again OR (cardinality(jobs) = 0 AND v_looked >= c_looks);
    IF cardinality(jobs) > 0 THEN PERFORM setval(p_queue.turns, v_turns + cardinality(jobs)); END IF;
END $$;

CREATE FUNCTION take_tokens(p_bucket bucket, p_cost int) RETURNS void LANGUAGE sql AS
$$ INSERT INTO bucket AS b VALUES (p_bucket.queue, p_bucket.name, p_bucket.level - p_cost * p_bucket.unit, p_bucket.unit, p_bucket.since)
    ON CONFLICT (queue, name) DO UPDATE SET level = excluded.level, unit = excluded.unit, since = excluded.since $$;

-- Rings for the held jobs of a limit: now if one may begin, or when it has the tokens for the first of
-- them. If the limit is full, the end of a job rings.
CREATE FUNCTION ring_later(p_queue int, p_name text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_limit limits := bounds_of(p_queue, p_name); v_cost int; v_at bigint := p_now;
BEGIN
    IF v_limit.at_once IS NOT NULL AND taken_of(p_queue, p_name) >= v_limit.at_once THEN RETURN; END IF;
    SELECT x.cost INTO v_cost FROM unnest('{0,1,2,3}'::int[]) p(n), LATERAL (
        SELECT cost FROM job WHERE queue = p_queue AND state = 'held' AND held_by = p_name AND priority = p.n
        ORDER BY at, place LIMIT 1) x LIMIT 1;
    IF v_cost IS NULL THEN RETURN; END IF;
    IF v_limit.rate_count IS NOT NULL THEN
        v_at := greatest(p_now, tokens_at(v_limit, bucket_of(v_limit, p_name, p_now), v_cost));
    END IF;
    INSERT INTO freed (queue, at, name) VALUES (p_queue, v_at, p_name);
END $$;

-- Jobs that are not due yet, for a caller who takes those that are due by a time to come.
CREATE FUNCTION claim_early(p_queue queue, p_kinds text[], p_due_by bigint, p_now bigint) RETURNS void LANGUAGE sql AS
$$ UPDATE job SET at = p_now WHERE number = ANY (ARRAY(
    SELECT x.number FROM unnest('{0,1,2,3}'::int[]) p(n), LATERAL (
        SELECT number, at, id_of(name, number) AS id FROM job
        WHERE queue = p_queue.id AND state = 'ready' AND priority = p.n AND at > p_now AND at <= p_due_by
            AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        ORDER BY at, id_of(name, number) COLLATE "C" LIMIT 1 FOR UPDATE SKIP LOCKED) x
    ORDER BY x.at, x.id COLLATE "C" LIMIT 1)) $$;
