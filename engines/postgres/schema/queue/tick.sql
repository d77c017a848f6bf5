-- All that time brings. Any number of callers may tick: what another one does is skipped, so nobody
-- leads, and a queue goes on as long as anybody claims from it.

-- Ends jobs that nobody has taken in time.
CREATE FUNCTION expire(p_queue queue, p_now bigint, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE v_number bigint; v_job job;
BEGIN
    told := '{}';
    FOR v_number IN SELECT number FROM job WHERE queue = p_queue.id AND expires <= p_now ORDER BY expires, place LIMIT 1024 LOOP
        -- One of them may have ended this one.
        SELECT * INTO v_job FROM job WHERE number = v_number AND expires <= p_now AND state <> 'running' FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            told := told || end_unrun(p_queue, v_job, (needless(v_job, p_now)).error, NULL, p_now);
        END IF;
    END LOOP;
END $$;

-- Ends what time has ended, in pieces. `p_told` asks for the jobs that have become due since then.
CREATE FUNCTION tick(p_queue queue, p_due_since bigint, p_now bigint, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 1024;
    v_job job;
    v_low bigint;
    v_row record;
    v_before bigint;
BEGIN
    told := '{}';
    v_before := pg_sequence_last_value(p_queue.ticked);
    PERFORM setval(p_queue.ticked, p_now);
    IF NOT pg_try_advisory_xact_lock(lock_of('tick', p_queue.id)) THEN RETURN; END IF;
    IF v_before > p_now THEN
        -- The clock was set back: jobs that were ready stay so, and tokens come from now on.
        UPDATE job SET at = p_now WHERE queue = p_queue.id AND state IN ('ready', 'held') AND at > p_now AND due = 0;
        UPDATE bucket SET since = p_now WHERE queue = p_queue.id AND since > p_now;
        UPDATE freed SET at = p_now WHERE queue = p_queue.id AND at > p_now;
    END IF;
    -- Leases that are over.
    FOR v_job IN SELECT * FROM job WHERE queue = p_queue.id AND state = 'running' AND at <= p_now
        ORDER BY at, place LIMIT c_most FOR UPDATE SKIP LOCKED
    LOOP
        told := told || take_back(p_queue, v_job, p_now);
    END LOOP;
    told := told || expire(p_queue, p_now);
    IF p_due_since IS NOT NULL THEN
        SELECT told || coalesce(array_agg(told(id_of(name, number), 'ready') ORDER BY at, place), '{}') INTO told FROM job
        WHERE queue = p_queue.id AND state = 'ready' AND at > p_due_since AND at <= p_now AND since < at;
    END IF;
    -- Jobs whose time to be kept is over.
    FOR v_row IN DELETE FROM ended WHERE number = ANY (ARRAY(
            SELECT number FROM ended WHERE queue = p_queue.id AND died = false AND gone_at <= p_now
            ORDER BY gone_at LIMIT 5000 FOR UPDATE SKIP LOCKED)
            || ARRAY(SELECT number FROM ended WHERE queue = p_queue.id AND died AND gone_at <= p_now
            ORDER BY gone_at LIMIT 5000 FOR UPDATE SKIP LOCKED)) RETURNING number, name
    LOOP
        IF v_row.name IS NOT NULL THEN PERFORM forget(p_queue, v_row.name, p_now); END IF;
        PERFORM ring_edges(p_queue.id, v_row.number, false);
        IF p_due_since IS NOT NULL THEN told := told || told(id_of(v_row.name, v_row.number), NULL); END IF;
    END LOOP;
    DELETE FROM mark WHERE (queue, fingerprint) IN (
        SELECT queue, fingerprint FROM mark WHERE queue = p_queue.id AND until <= p_now LIMIT c_most FOR UPDATE SKIP LOCKED);
    DELETE FROM executed WHERE (queue, fingerprint) IN (
        SELECT queue, fingerprint FROM executed WHERE queue = p_queue.id AND until <= p_now LIMIT c_most FOR UPDATE SKIP LOCKED);
    DELETE FROM root WHERE (queue, signature) IN (
        SELECT queue, signature FROM root WHERE queue = p_queue.id AND until <= p_now LIMIT c_most FOR UPDATE SKIP LOCKED);
    DELETE FROM gone WHERE (queue, name) IN (
        SELECT queue, name FROM gone WHERE queue = p_queue.id AND until < p_now LIMIT c_most FOR UPDATE SKIP LOCKED);
    DELETE FROM note WHERE (queue, place) IN (
        SELECT queue, place FROM note WHERE queue = p_queue.id AND until > 0 AND until <= p_now LIMIT c_most FOR UPDATE SKIP LOCKED);
    told := told || resolve(p_queue, p_now) || tick_periodic(p_queue, p_now);
    -- The floors: the one scan that passes the dead entries of the index.
    FOR v_priority IN 0 .. 3 LOOP
        SELECT at INTO v_low FROM job WHERE queue = p_queue.id AND state = 'ready' AND priority = v_priority
        ORDER BY at, place LIMIT 1;
        PERFORM setval(p_queue.floors[v_priority + 1], least(coalesce(v_low, p_now), p_now) - 1);
    END LOOP;
END $$;

-- Takes back a job whose lease is over.
CREATE FUNCTION take_back(p_queue queue, p_job job, p_now bigint) RETURNS answer[] LANGUAGE plpgsql AS $$
DECLARE
    v_told answer[];
    v_id text := id_of(p_job.name, p_job.number);
    v_error text := 'its worker was silent for ' || shown_time(p_queue.lease);
BEGIN
    -- Its worker has not ended it.
    p_job.token := NULL;
    IF NOT p_job.silent THEN
        RETURN end_one(p_queue, p_job, CASE WHEN p_job.stopping THEN 'put_back' ELSE 'crashed' END, NULL, NULL, NULL, 0, p_now);
    END IF;
    -- The silence at the end of a run is no part of it.
    v_told := end_one(p_queue, p_job, 'failed', NULL, v_error, NULL, p_job.at - p_queue.lease - p_job.since, p_now)
        || line('taken_back', v_id, p_job.kind, p_job.failures, v_error);
    IF NOT EXISTS (SELECT FROM job WHERE number = p_job.number) THEN
        v_told := v_told || line('died', v_id, p_job.kind, p_job.failures, v_error);
    END IF;
    RETURN v_told;
END $$;

-- A duration as people write it.
CREATE FUNCTION shown_time(p_time bigint) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN p_time < 1000 THEN p_time || 'ms' ELSE trim_scale(p_time / 1000.0)::text || 's' END $$;

-- The jobs of schedules with a fixed interval. Each tick is made once, by whoever has locked its row.
CREATE FUNCTION tick_periodic(p_queue queue, p_now bigint, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE v_row periodic; v_passed bigint; v_pushed record; v_runs boolean;
BEGIN
    told := '{}';
    FOR v_row IN SELECT * FROM periodic WHERE queue = p_queue.id AND every IS NOT NULL AND last + every <= p_now
        FOR UPDATE SKIP LOCKED
    LOOP
        -- Those that were missed make one job.
        v_row.last := v_row.last + v_row.every * ((p_now - v_row.last) / v_row.every);
        v_runs := v_row.run IS NOT NULL AND number_of(p_queue.id, v_row.run) IS NOT NULL;
        IF NOT v_runs THEN
            BEGIN
                SELECT * INTO v_pushed FROM push_one(p_queue, v_row.kind, v_row.payload,
                    coalesce(v_row.settings, '{}') || jsonb_build_object('pushed', v_row.last), '{}', false, p_now);
                told := told || told(v_pushed.id, v_pushed.state) || v_pushed.told;
                v_row.run := v_pushed.id;
                PERFORM ring(p_queue.id, p_queue.bell);
            EXCEPTION WHEN OTHERS THEN
                -- Two that are in each other's way, and a server that fails, are no fault of the schedule.
                IF SQLSTATE ~ '^(08|25|40|53|55|57|58|XX)' THEN RAISE; END IF;
                -- Any other error comes again with each tick, and every claim ticks. So the tick is passed.
                RAISE WARNING 'waterline: the schedule "%" of the queue "%" made no job: %', v_row.name, p_queue.name, SQLERRM
                    USING HINT = 'Register it with settings that a push takes, or remove it.';
                told := told || line('unmade', v_row.name, v_row.kind, 0, SQLERRM);
            END;
        END IF;
        UPDATE periodic SET last = v_row.last, run = v_row.run, skipped = skipped + v_runs::int
        WHERE queue = p_queue.id AND name = v_row.name;
    END LOOP;
END $$;

-- What a worker may look for, and when time brings something next.
CREATE FUNCTION glance(p_queue queue, p_now bigint, OUT ready boolean, OUT paused_until bigint, OUT is_full boolean,
    OUT is_limited boolean, OUT has_room boolean, OUT due bigint, OUT expires bigint, OUT next bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_all limits;
    v_suspect boolean;
    v_cost int;
    v_next bigint;
BEGIN
    paused_until := p_queue.paused_until;
    SELECT min(x.at) INTO due FROM unnest('{0,1,2,3}'::int[]) p(n), LATERAL (
        SELECT j.at FROM job j WHERE j.queue = p_queue.id AND j.state = 'ready' AND j.priority = p.n AND j.at > p_now
        ORDER BY j.at LIMIT 1) x;
    SELECT x.suspect, x.cost INTO v_suspect, v_cost FROM unnest('{0,1,2,3}'::int[]) p(n), LATERAL (
        SELECT j.suspect, j.cost FROM job j WHERE j.queue = p_queue.id AND j.state = 'ready' AND j.priority = p.n AND j.at <= p_now
        ORDER BY j.at, j.place LIMIT 1) x LIMIT 1;
    ready := FOUND;
    is_full := EXISTS (SELECT FROM job j WHERE j.queue = p_queue.id AND j.suspect AND j.state = 'running');
    IF v_suspect THEN is_full := EXISTS (SELECT FROM job j WHERE j.queue = p_queue.id AND j.state = 'running'); END IF;
    is_limited := false;
    IF p_queue.limited THEN
        IF p_queue.limit_sorts LIKE '%q%' THEN v_all := bounds_of(p_queue.id, 'q'); END IF;
        IF v_all.at_once IS NOT NULL THEN is_full := is_full OR taken_of(p_queue.id, 'q') >= v_all.at_once; END IF;
        IF v_all.rate_count IS NOT NULL AND v_cost IS NOT NULL THEN
            v_next := tokens_at(v_all, bucket_of(v_all, 'q', p_now), v_cost);
            is_full := is_full OR v_next > p_now;
        END IF;
        is_limited := is_full AND ready OR EXISTS (SELECT FROM job j WHERE j.queue = p_queue.id AND j.state = 'held' AND j.held_by IS NOT NULL);
        ready := ready OR EXISTS (SELECT FROM freed f, job j WHERE f.queue = p_queue.id AND f.at <= p_now
            AND j.queue = p_queue.id AND j.state = 'held' AND j.held_by = f.name);
    END IF;
    SELECT min(j.expires) INTO expires FROM job j WHERE j.queue = p_queue.id AND j.expires IS NOT NULL;
    has_room := true;
    IF p_queue.max_waiting IS NOT NULL THEN
        SELECT count(*) < p_queue.max_waiting INTO has_room FROM (
            (SELECT FROM job j WHERE j.queue = p_queue.id AND j.state = 'ready' LIMIT p_queue.max_waiting)
            UNION ALL (SELECT FROM job j WHERE j.queue = p_queue.id AND j.state = 'held' AND j.held_by IS NOT NULL
                LIMIT p_queue.max_waiting)
            UNION ALL (SELECT FROM job j WHERE j.queue = p_queue.id AND j.state = 'waiting' AND j.held_by IS NULL
                LIMIT p_queue.max_waiting)) w;
        has_room := has_room OR coalesce(expires <= p_now, false);
    END IF;
    IF v_next <= p_now THEN v_next := NULL; END IF;
    -- Of numbers, `least` takes those that are there.
    next := least(due, expires, v_next, CASE WHEN p_queue.paused_until > p_now THEN p_queue.paused_until END,
        (SELECT min(e.gone_at) FROM ended e WHERE e.queue = p_queue.id AND e.died = false AND e.gone_at IS NOT NULL),
        (SELECT min(e.gone_at) FROM ended e WHERE e.queue = p_queue.id AND e.died AND e.gone_at IS NOT NULL),
        (SELECT min(j.at) FROM job j WHERE j.queue = p_queue.id AND j.state = 'running'),
        (SELECT min(f.at) FROM freed f WHERE f.queue = p_queue.id AND f.at > p_now),
        (SELECT min(p.last + p.every) FROM periodic p WHERE p.queue = p_queue.id AND p.every IS NOT NULL),
        (SELECT p_now WHERE EXISTS (SELECT FROM edge_bell b WHERE b.queue = p_queue.id)));
END $$;

-- The same as an answer: its bounds are numbers, and in `more` are the letters of what is true: r (ready), f (full),
-- l (limited), m (room for more).
CREATE FUNCTION glance_answer(p_queue queue, p_now bigint) RETURNS answer LANGUAGE plpgsql AS $$
DECLARE v_glance record := glance(p_queue, p_now);
BEGIN
    RETURN ROW('glance', v_glance.next, p_queue.name, NULL, NULL, v_glance.expires, NULL, NULL, NULL, NULL, NULL, NULL,
        v_glance.paused_until, v_glance.due, p_now, NULL,
        CASE WHEN v_glance.ready THEN 'r' ELSE '' END || CASE WHEN v_glance.is_full THEN 'f' ELSE '' END
            || CASE WHEN v_glance.is_limited THEN 'l' ELSE '' END || CASE WHEN v_glance.has_room THEN 'm' ELSE '' END)::answer;
END $$;

-- Ends attempts and claims jobs, in one transaction: what a runner calls. It returns what happened as
-- answers. `p_tick`: do all that time has brought, and not only once a second. `p_arm`: if there is no
-- job, the caller listens for so long. `p_due_since`: tell of the jobs that have become due since then.
CREATE FUNCTION turn(p_numbers bigint[], p_tokens bigint[], p_ends text[], p_ats bigint[], p_errors text[], p_datas text[],
    p_queue text, p_most int, p_kinds text[], p_due_by bigint, p_lease bigint, p_worker text, p_tick boolean,
    p_arm bigint, p_due_since bigint) RETURNS SETOF answer LANGUAGE plpgsql AS $$
DECLARE
    v_queue queue;
    v_now bigint := clock();
    v_lease bigint;
    v_claims boolean := false;
    v_is_special boolean;
    v_turns bigint;
    v_low int;
    v_order int[];
    v_floors bigint[];
    v_left int;
    v_count int;
    v_got int := 0;
    v_told answer[];
    v_freed text[] := '{}';
    v_again boolean := false;
BEGIN
    IF p_queue IS NOT NULL THEN
        SELECT * INTO v_queue FROM queue WHERE name = p_queue;
        IF NOT FOUND THEN PERFORM queue_of(p_queue); END IF;
        v_claims := p_most > 0 AND v_queue.paused_until <= v_now;
        v_lease := coalesce(p_lease, v_queue.lease);
        IF p_tick OR v_now - coalesce(pg_sequence_last_value(v_queue.ticked), 0) NOT BETWEEN 0 AND 999 THEN
            RETURN QUERY SELECT * FROM unnest(tick(v_queue, p_due_since, v_now));
        END IF;
    END IF;
    IF cardinality(p_numbers) > 0 THEN
        SELECT e.answers, e.freed INTO v_told, v_freed FROM end_many(p_numbers, p_tokens, p_ends, p_ats, p_errors, p_datas, true,
            CASE WHEN v_claims AND v_queue.limited THEN v_queue.id END,
            CASE WHEN v_queue.retention = 0 AND NOT v_queue.limited THEN v_queue.id END) e;
        RETURN QUERY SELECT * FROM unnest(v_told);
        -- The ends may have made jobs ready.
        v_now := greatest(v_now, clock());
    ELSIF p_queue IS NOT NULL AND p_most > 0 THEN
        -- A claim alone need not be durable: if a crash of the server loses it, the job is ready again, and
        -- its token is void.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    FOR v_look IN 1 .. CASE WHEN v_claims THEN 3 ELSE 0 END LOOP
        IF v_look = 2 THEN
            -- Ends by `finish` leave it to the next claim to look at the jobs that waited for them.
            v_told := resolve(v_queue, v_now);
            RETURN QUERY SELECT * FROM unnest(v_told);
            CONTINUE WHEN p_arm IS NULL AND cardinality(v_told) = 0;
            -- A push that rang nobody may be there by now, so it looks once more.
            IF p_arm IS NOT NULL THEN PERFORM arm_bell(v_queue.bell, p_arm); END IF;
        ELSIF v_look = 3 THEN
            -- Nothing is ready: a job that is due later, for one who takes it early.
            EXIT WHEN p_due_by IS NULL OR p_due_by <= v_now;
        END IF;
        v_is_special := v_queue.limited OR v_look = 3 AND has_special(v_queue.id, p_due_by);
        IF NOT v_is_special THEN
            v_turns := coalesce(pg_sequence_last_value(v_queue.turns), 0);
            -- Each eighth claim takes from the lowest priority, so that none starves.
            v_low := ((v_turns + p_most) / 8 - v_turns / 8)::int;
            v_order := '{0,1,2,3}';
            v_left := p_most - v_low;
            -- Read before the statement: within it, the volatile function would be a filter and no bound.
            v_floors := ARRAY[pg_sequence_last_value(v_queue.floors[1]), pg_sequence_last_value(v_queue.floors[2]),
                pg_sequence_last_value(v_queue.floors[3]), pg_sequence_last_value(v_queue.floors[4])];
            IF v_look = 3 THEN PERFORM claim_early(v_queue, p_kinds, p_due_by, v_now); END IF;
            FOR v_pass IN 0 .. 1 LOOP
                -- The second pass is that of the lowest priority, and takes what the first one has left, too.
                IF v_pass = 1 THEN
                    v_left := p_most - v_got;
                    IF v_low > 0 THEN v_order := '{3,2,1,0}'; END IF;
                END IF;
                CONTINUE WHEN v_left = 0;
                RETURN QUERY UPDATE job j SET state = 'running', token = (random() * 9007199254740991)::bigint + 1,
                    at = v_now + v_lease, since = v_now, place = nextval('place'), worker = p_worker, expires = NULL,
                    resubmit = CASE WHEN j.resubmit > v_now THEN j.resubmit END,
                    fingerprint = CASE WHEN j.uniq_until = 'c' AND j.skips_from IS NULL THEN NULL ELSE j.fingerprint END,
                    uniq = CASE WHEN j.uniq_until = 'c' THEN NULL ELSE j.uniq END, uniq_until = nullif(j.uniq_until, 'c')
                -- An array counts as few rows, whatever the statistics say. They come in the order of their numbers.
                WHERE j.number = ANY (ARRAY(
                    SELECT x.number FROM unnest(v_order) p(n), LATERAL (
                        SELECT r.number FROM job r
                        WHERE r.queue = v_queue.id AND r.state = 'ready' AND r.priority = p.n AND r.at <= v_now
                            -- A look that found nothing looks once more 5 s deeper: a late commit is there.
                            AND r.at >= v_floors[p.n + 1] - v_pass * 5000
                            AND (p_kinds IS NULL OR r.kind = ANY (p_kinds))
                            AND (p_due_by IS NULL OR p_due_by >= v_now OR r.due <= p_due_by)
                            AND (r.expires IS NULL OR r.expires > v_now)
                        ORDER BY r.at, r.place LIMIT v_left FOR UPDATE SKIP LOCKED) x
                    WHERE NOT EXISTS (SELECT FROM job s WHERE s.queue = v_queue.id AND s.suspect)
                        AND NOT EXISTS (SELECT FROM job s WHERE s.queue = v_queue.id AND NOT s.suspect AND s.at <= v_now
                            AND s.state = 'ready' AND (s.root IS NOT NULL OR s.skips_from IS NOT NULL))
                    LIMIT v_left))
                RETURNING 'claimed'::text, j.number, id_of(j.name, j.number), NULL::text, NULL::text, j.token, j.kind, j.payload,
                    j.data, j.error, j.failures, j.crashes, j.pushed, j.due, j.since, j.priority::int,
                    more_of(j.key, j.resubmit, j.root, j.root_at, j.cost, j.meta, j.noted);
                GET DIAGNOSTICS v_count = ROW_COUNT;
                v_got := v_got + v_count;
                EXIT WHEN v_got = p_most;
            END LOOP;
            IF v_got > 0 THEN v_turns := setval(v_queue.turns, v_turns + v_got); END IF;
            EXIT WHEN v_got > 0;
            v_is_special := has_special(v_queue.id, v_now);
        END IF;
        IF v_is_special THEN
            SELECT c.claimed, c.told, c.again INTO v_got, v_told, v_again
            FROM claim_limited(v_queue, p_most, p_kinds, p_due_by, v_lease, p_worker, v_now, v_look = 3, v_freed) c;
            v_freed := '{}';
            RETURN QUERY SELECT * FROM unnest(v_told);
            EXIT WHEN v_again OR v_got > 0;
        END IF;
    END LOOP;
    IF v_again AND v_got = 0 THEN
        RETURN QUERY SELECT 'again', NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::bigint, NULL::text, NULL::text,
            NULL::text, NULL::text, NULL::int, NULL::int, NULL::bigint, NULL::bigint, NULL::bigint, NULL::int, NULL::text;
    END IF;
    -- Limits and doorbells may bring something sooner than the last glance has said.
    IF p_queue IS NOT NULL AND (p_tick OR p_most > 0 AND (v_got = 0 OR v_got < p_most AND (v_queue.limited
        OR EXISTS (SELECT FROM edge_bell WHERE queue = v_queue.id)))) THEN
        RETURN NEXT glance_answer(v_queue, v_now);
    ELSIF v_got < p_most THEN
        RETURN QUERY SELECT 'short', NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::bigint, NULL::text, NULL::text,
            NULL::text, NULL::text, NULL::int, NULL::int, NULL::bigint, NULL::bigint, NULL::bigint, NULL::int, NULL::text;
    END IF;
END $$;

-- For every language: claims up to `p_most` jobs for `p_lease` milliseconds (null: as the queue says),
-- and does what time has brought. The attempt is `failures` + 1. A claim by this call is durable with
-- the transaction; `p_async` is for callers whose transaction is this call alone. `p_listen`: if there is
-- no job, the caller waits for so many milliseconds for the channel of `listen_to`, and then claims again.
CREATE FUNCTION claim(p_queue text, p_most int DEFAULT 1, p_worker text DEFAULT NULL, p_kinds text[] DEFAULT NULL,
    p_lease bigint DEFAULT NULL, p_async boolean DEFAULT false, p_listen bigint DEFAULT NULL)
RETURNS TABLE (job bigint, token bigint, id text, kind text, payload text, data text, failures int, crashes int, pushed bigint, more text)
LANGUAGE plpgsql AS $$
DECLARE v_before text := current_setting('synchronous_commit'); v_answers answer[];
BEGIN
    -- A claim that looked at many jobs, and found none that may run, looks at the next ones.
    FOR v_round IN 1 .. 64 LOOP
        v_answers := ARRAY(SELECT t FROM turn('{}', '{}', '{}', '{}', '{}', '{}', p_queue, p_most, p_kinds, NULL, p_lease,
            p_worker, false, p_listen, NULL) t);
        EXIT WHEN NOT EXISTS (SELECT FROM unnest(v_answers) a WHERE a.what = 'again');
    END LOOP;
    RETURN QUERY SELECT a.number, a.token, a.id, a.kind, a.payload, a.data, a.failures, a.crashes, a.pushed, a.more
        FROM unnest(v_answers) a WHERE a.what = 'claimed' ORDER BY a.priority, a.number;
    -- A turn that only claims has made the transaction of its caller asynchronous.
    IF NOT p_async THEN PERFORM set_config('synchronous_commit', v_before, true); END IF;
END $$;
