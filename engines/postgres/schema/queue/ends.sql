-- The ends of attempts, and what becomes of the job and of those who wait for it.

-- The pause before the next attempt, in milliseconds; null: there is none. `p_attempt` is the number
-- of attempts that have failed.
CREATE FUNCTION pause_of(p_retry jsonb, p_attempt int, p_chance float8) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_first float8 := coalesce((p_retry->>'first_ms')::float8, 1000);
    v_cap float8 := coalesce((p_retry->>'cap_ms')::float8, 3600000);
    v_attempts numeric := (p_retry->>'attempts')::numeric;
    v_jitter float8 := coalesce((p_retry->>'jitter')::float8, 0);
    v_times float8;
    v_pause float8;
BEGIN
    IF p_attempt >= v_attempts THEN RETURN NULL; END IF;
    -- An exponent that is bounded, since a power beyond the largest number is an error.
    v_times := CASE coalesce(p_retry->>'growth', 'doubling')
        WHEN 'doubling' THEN power(2::float8, least(p_attempt - 1, 200))
        WHEN 'factor' THEN exp(least(ln(greatest(coalesce((p_retry->>'factor')::float8, 2), 1)) * (p_attempt - 1), 200))
        WHEN 'quadratic' THEN p_attempt::float8 * p_attempt
        ELSE 1 END;
    v_pause := CASE WHEN p_retry->>'growth' = 'fixed' THEN v_first ELSE least(v_first * v_times, v_cap) END;
    -- A million years: a time that is added to it stays a number.
    v_pause := least(greatest(v_pause * (1 - v_jitter * (1 - p_chance)), 0), 3.2e16);
    RETURN ceil(round(v_pause::numeric, 6))::bigint;
END $$;

-- The end of the time for which an ended job is kept; null: for ever.
CREATE FUNCTION kept_until(p_time bigint, p_now bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN p_time < 0 THEN NULL ELSE p_now + least(p_time, 32000000000000000) END $$;

-- Remembers an id that goes.
CREATE FUNCTION forget(p_queue queue, p_name text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_name IS NOT NULL AND p_queue.ids_for > 0 THEN
        INSERT INTO gone AS g VALUES (p_queue.id, p_name, p_now + p_queue.ids_for)
        ON CONFLICT (queue, name) DO UPDATE SET until = excluded.until;
    END IF;
END $$;

-- Rings for those who wait for a job that has ended, is gone, or is there again.
CREATE FUNCTION ring_edges(p_queue int, p_number bigint, p_died boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- One whose edge is not committed yet has its own doorbell.
    IF EXISTS (SELECT FROM edge WHERE awaited = p_number) THEN
        INSERT INTO edge_bell (queue, awaited, died) VALUES (p_queue, p_number, p_died);
    END IF;
END $$;

-- Rings at the limits that a running job leaves.
CREATE FUNCTION leave_limits(p_queue queue, p_job job, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_queue.limited AND p_job.state = 'running' THEN
        INSERT INTO freed (queue, at, name) SELECT p_queue.id, p_now, 't' || p_job.kind WHERE p_job.counted;
        INSERT INTO freed (queue, at, name) SELECT p_queue.id, p_now, 'k' || p_job.key WHERE p_job.key IS NOT NULL;
    END IF;
END $$;

-- Puts a job, which the caller has locked, among those that have ended.
CREATE FUNCTION settle(p_queue queue, p_job job, p_died boolean, p_skipped text, p_now bigint)
RETURNS answer[] LANGUAGE plpgsql AS $$
DECLARE
    v_time bigint := CASE WHEN p_died THEN p_queue.dead_for ELSE coalesce(p_job.retention, p_queue.retention) END;
    v_id text := id_of(p_job.name, p_job.number);
    v_told answer[] := ARRAY[told(v_id, CASE WHEN p_died THEN 'dead' ELSE 'finished' END, p_job.data,
        CASE WHEN p_died THEN p_job.error END)];
BEGIN
    DELETE FROM job WHERE number = p_job.number;
    DELETE FROM edge WHERE job = p_job.number;
    PERFORM ring_edges(p_queue.id, p_job.number, p_died);
    IF v_time = 0 THEN
        PERFORM forget(p_queue, p_job.name, p_now);
        RETURN v_told;
    END IF;
    p_job.state := NULL;
    p_job.at := NULL;
    p_job.since := p_now;
    p_job.held_by := NULL;
    p_job.pending := 0;
    p_job.counted := false;
    p_job.silent := false;
    p_job.stopping := false;
    p_job.suspect := false;
    INSERT INTO ended SELECT p_died, kept_until(v_time, p_now), p_skipped, p_job.*;
    RETURN v_told;
END $$;

-- Ends a job that waits and is not to run: it is dead with this error, or was skipped for this reason.
CREATE FUNCTION end_unrun(p_queue queue, p_job job, p_error text, p_skipped text, p_now bigint)
RETURNS answer[] LANGUAGE plpgsql AS $$
DECLARE v_id text := id_of(p_job.name, p_job.number);
BEGIN
    IF p_skipped IS NULL THEN
        p_job.error := p_error;
        RETURN settle(p_queue, p_job, true, NULL, p_now)
            || line('died', v_id, p_job.kind, p_job.failures, p_error);
    END IF;
    RETURN settle(p_queue, p_job, false, p_skipped, p_now)
        || line('skipped', v_id, p_job.kind, p_job.failures, p_skipped);
END $$;

-- Ends an attempt of a running job, which the caller has locked. `p_end` is finished, failed (again at
-- `p_at`, or as its retry says), snoozed (until `p_at`), buried, put_back or crashed.
CREATE FUNCTION end_one(p_queue queue, p_job job, p_end text, p_at bigint, p_error text, p_data text,
    p_lasted bigint, p_now bigint, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE
    c_no_reason CONSTANT text := 'no reason was given';
    v_id text := id_of(p_job.name, p_job.number);
    -- A nullable setting: a comparison with null is not true.
    v_failures int := CASE WHEN coalesce(p_lasted >= p_queue.heal_after, false) THEN 0 ELSE p_job.failures END;
    v_crashes int := p_job.crashes;
    v_next text;
    v_due bigint := 0;
    v_error text;
    v_pause bigint;
    v_suspect boolean := CASE p_end WHEN 'crashed' THEN p_job.crashes >= 1 WHEN 'put_back' THEN p_job.suspect ELSE false END;
BEGIN
    told := '{}';
    IF p_data IS NOT NULL THEN p_job.data := p_data; END IF;
    PERFORM leave_limits(p_queue, p_job, p_now);
    CASE p_end
    WHEN 'finished' THEN
        v_next := 'finish';
        IF p_job.skips_from IS NOT NULL THEN
            INSERT INTO executed AS e VALUES (p_queue.id, p_job.fingerprint, p_now + 86400000, p_job.place)
            ON CONFLICT (queue, fingerprint)
            DO UPDATE SET place = greatest(e.place, excluded.place), until = excluded.until;
        END IF;
    WHEN 'snoozed' THEN
        v_next := 'wait';
        v_due := p_at;
    WHEN 'put_back' THEN
        v_next := 'wait';
    WHEN 'buried' THEN
        v_next := 'die';
        v_failures := v_failures + 1;
        v_error := coalesce(p_error, c_no_reason);
    WHEN 'failed' THEN
        v_failures := v_failures + 1;
        v_error := coalesce(p_error, c_no_reason);
        v_pause := pause_of(coalesce(p_job.retry, p_queue.retry), v_failures, chance());
        v_next := CASE WHEN v_pause IS NULL THEN 'die' ELSE 'wait' END;
        v_due := coalesce(p_at, p_now + v_pause);
    WHEN 'crashed' THEN
        v_crashes := v_crashes + 1;
        IF coalesce(v_crashes >= p_queue.max_crashes, false) THEN
            v_next := 'die';
            v_error := 'its process died ' || CASE WHEN v_crashes = 1 THEN 'once' ELSE v_crashes || ' times' END
                || ' while it ran';
        ELSE
            v_next := 'wait';
            IF v_crashes > 1 THEN
                -- Each process that is up takes it anew, so a job that kills them all must not come at once.
                v_due := p_now + ceil(least(1000 * power(2::float8, least(v_crashes - 2, 30)), 300000) * chance())::bigint;
            END IF;
        END IF;
    ELSE
        RAISE 'waterline: there is no end "%"', p_end USING ERRCODE = 'WQ002';
    END CASE;
    IF p_job.resubmit IS NOT NULL AND (v_next = 'finish' OR v_next = 'die' AND v_crashes = p_job.crashes) THEN
        -- The push asked for a new run, which has attempts of its own.
        v_crashes := CASE WHEN v_next = 'finish' THEN 0 ELSE v_crashes END;
        v_error := CASE WHEN v_next = 'die' THEN v_error ELSE '' END;
        v_next := 'anew';
        v_failures := 0;
        v_due := p_job.resubmit;
        IF p_job.skips_from IS NOT NULL THEN p_job.skips_from := nextval('place'); END IF;
        IF p_job.noted IS NOT NULL THEN
            told := told || told(v_id, NULL, p_outcome => 'anew');
            p_job.fraction := NULL;
            p_job.note := NULL;
            p_job.noted := NULL;
        END IF;
    END IF;
    IF v_next IN ('finish', 'die') THEN
        IF v_next = 'die' THEN
            p_job.failures := v_failures;
            p_job.crashes := v_crashes;
            p_job.error := v_error;
            IF p_end = 'crashed' THEN
                told := told || line('died', v_id, p_job.kind, p_job.failures, v_error);
            END IF;
        END IF;
        p_job.resubmit := NULL;
        told := told || settle(p_queue, p_job, v_next = 'die', NULL, p_now);
        RETURN;
    END IF;
    UPDATE job SET state = 'ready', at = greatest(v_due, p_now), token = NULL,
        -- Of those that are due at one time, the first is the one that was pushed first.
        place = CASE WHEN v_due > p_now THEN number ELSE nextval('place') END, failures = v_failures, crashes = v_crashes, due = v_due, since = p_now, error = coalesce(v_error, error),
        data = p_job.data, resubmit = CASE WHEN v_next = 'wait' THEN resubmit END, skips_from = p_job.skips_from,
        fraction = p_job.fraction, note = p_job.note, noted = p_job.noted,
        counted = false, silent = false, stopping = false, suspect = v_suspect, worker = NULL
    WHERE number = p_job.number;
    told := told || told(v_id, CASE WHEN v_due <= p_now THEN 'ready' ELSE 'scheduled' END, p_data);
END $$;

-- What a job that ended in the common way leaves beside its row: an id to remember, and places in limits.
CREATE TYPE leaving AS (queue int, name text, ids_for bigint, key text, kind text);

-- Ends that were written, by their places among those that were asked for.
CREATE TYPE ending AS (answers answer[], places bigint[], numbers bigint[], queues int[], freed text[]);

-- Ends jobs that finish, whatever they leave.
CREATE FUNCTION end_kept(p_numbers bigint[], p_tokens bigint[], p_ends text[], p_datas text[], p_claims int, p_now bigint)
RETURNS ending LANGUAGE plpgsql AS $$
DECLARE v_ended ending; v_left leaving[]; v_one leaving; v_name text;
BEGIN
    WITH d AS (
        DELETE FROM job j USING queue q, (
            SELECT * FROM unnest(p_numbers, p_tokens, p_ends, p_datas) WITH ORDINALITY u(number, token, end_, data, place)
            WHERE u.end_ = 'finished' ORDER BY u.number) a
        WHERE j.number = a.number AND j.token = a.token AND j.resubmit IS NULL AND j.skips_from IS NULL AND q.id = j.queue
        RETURNING j.*, a.place AS asked, a.data AS new_data, q.limited, q.ids_for, coalesce(j.retention, q.retention) AS time
    ), kept AS (
        INSERT INTO ended (number, queue, state, priority, at, place, kind, payload, name, key, failures, crashes,
            pushed, due, since, error, data, meta, fraction, note, noted, retry, retention, uniq, uniq_until,
            fingerprint, root, root_at, is_root, expires, cost, on_dead, token, died, gone_at)
        SELECT number, queue, NULL, priority, NULL, place, kind, payload, name, key, failures, crashes,
            pushed, due, p_now, error, coalesce(new_data, data), meta, fraction, note, noted, retry, retention, uniq,
            uniq_until, fingerprint, root, root_at, is_root, expires, cost, on_dead, token, false, kept_until(time, p_now)
        FROM d WHERE time <> 0
    )
    SELECT coalesce(array_agg(ROW('ended', number, id_of(name, number), 'finished', CASE WHEN time <> 0 THEN 'finished' END, token,
            NULL, NULL, new_data, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::answer), '{}'),
        coalesce(array_agg(asked), '{}'), coalesce(array_agg(number), '{}'), coalesce(array_agg(queue), '{}'),
        array_agg(ROW(queue, CASE WHEN time = 0 AND ids_for > 0 THEN name END, ids_for, CASE WHEN limited THEN key END,
            CASE WHEN limited AND counted THEN kind END)::leaving)
            FILTER (WHERE limited AND (counted OR key IS NOT NULL) OR time = 0 AND ids_for > 0 AND name IS NOT NULL)
    INTO v_ended.answers, v_ended.places, v_ended.numbers, v_ended.queues, v_left FROM d;
    v_ended.freed := '{}';
    FOREACH v_one IN ARRAY coalesce(v_left, '{}') LOOP
        IF v_one.name IS NOT NULL THEN
            INSERT INTO gone (queue, name, until) VALUES (v_one.queue, v_one.name, p_now + v_one.ids_for)
            ON CONFLICT (queue, name) DO UPDATE SET until = excluded.until;
        END IF;
        FOREACH v_name IN ARRAY ARRAY['k' || v_one.key, 't' || v_one.kind] LOOP
            IF v_name IS NULL THEN CONTINUE;
            ELSIF v_one.queue IS DISTINCT FROM p_claims THEN INSERT INTO freed (queue, at, name) VALUES (v_one.queue, p_now, v_name);
            ELSIF v_name <> ALL (v_ended.freed) THEN v_ended.freed := v_ended.freed || v_name;
            END IF;
        END LOOP;
    END LOOP;
    RETURN v_ended;
END $$;

-- Ends attempts. For each one there is a row `ended`, in any order. The limits whose places are free now
-- are in `freed` for the queue `p_claims`, since the caller takes up its held jobs; other bells ring.
-- `p_drops`: a queue without limits that does not keep what has finished.
CREATE FUNCTION end_many(p_numbers bigint[], p_tokens bigint[], p_ends text[], p_ats bigint[], p_errors text[],
    p_datas text[], p_resolve boolean, p_claims int, p_drops int, OUT answers answer[], OUT freed text[]) LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := clock();
    v_asked int := coalesce(cardinality(p_numbers), 0);
    v_places bigint[] := '{}';
    v_numbers bigint[] := '{}';
    v_queues int[] := '{}';
    v_ended ending;
    v_rung boolean := false;
    v_job job;
    v_queue queue;
    v_told answer[];
    v_state text;
BEGIN
    answers := '{}';
    freed := '{}';
    -- The most common case: jobs that finish and leave nothing. What this does not take, the next statement
    -- does, and then the loop. All three compare the token alone: with the state, the planner would take the
    -- index of running jobs, whose dead entries it does not know.
    IF p_drops IS NOT NULL THEN
        WITH d AS (
            DELETE FROM job j USING (
                SELECT * FROM unnest(p_numbers, p_tokens, p_ends, p_datas) WITH ORDINALITY u(number, token, end_, data, place)
                WHERE u.end_ = 'finished' ORDER BY u.number) a
            WHERE j.number = a.number AND j.token = a.token AND j.resubmit IS NULL AND j.skips_from IS NULL
                AND j.queue = p_drops AND coalesce(j.retention, 0) = 0 AND j.name IS NULL
            RETURNING j.number, j.token, a.place, a.data)
        SELECT coalesce(array_agg(ROW('ended', number, id_of(NULL, number), 'finished', NULL, token, NULL, NULL, data, NULL, NULL,
                NULL, NULL, NULL, NULL, NULL, NULL)::answer), '{}'),
            coalesce(array_agg(place), '{}'), coalesce(array_agg(number), '{}')
        INTO answers, v_places, v_numbers FROM d;
        v_queues := array_fill(p_drops, ARRAY[cardinality(v_numbers)]);
    END IF;
    IF cardinality(v_places) < v_asked THEN
        v_ended := end_kept(p_numbers, p_tokens, p_ends, p_datas, p_claims, v_now);
        answers := answers || v_ended.answers;
        v_places := v_places || v_ended.places;
        v_numbers := v_numbers || v_ended.numbers;
        v_queues := v_queues || v_ended.queues;
        freed := v_ended.freed;
    END IF;
    -- A new statement: it sees each edge that was there when the rows above were locked.
    IF EXISTS (SELECT FROM edge WHERE awaited = ANY (v_numbers)) THEN
        INSERT INTO edge_bell (queue, awaited, died)
        SELECT n.queue, n.number, false FROM unnest(v_queues, v_numbers) n(queue, number)
        WHERE EXISTS (SELECT FROM edge WHERE awaited = n.number);
        v_rung := true;
    END IF;
    FOR v_at IN 1 .. CASE WHEN cardinality(v_places) < v_asked THEN v_asked ELSE 0 END LOOP
        CONTINUE WHEN v_at = ANY (v_places);
        SELECT * INTO v_job FROM job WHERE number = p_numbers[v_at] AND token = p_tokens[v_at] FOR UPDATE;
        IF NOT FOUND THEN
            answers := answers || ended_answer(p_numbers[v_at], p_tokens[v_at], 'halt', NULL);
            CONTINUE;
        END IF;
        SELECT * INTO v_queue FROM queue WHERE id = v_job.queue;
        v_queues := v_queues || v_queue.id;
        v_told := end_one(v_queue, v_job, p_ends[v_at], p_ats[v_at], p_errors[v_at], p_datas[v_at],
            v_now - v_job.since, v_now);
        SELECT shown(state, at, v_now) INTO v_state FROM job WHERE number = v_job.number;
        IF NOT FOUND THEN
            SELECT CASE WHEN died THEN 'dead' ELSE 'finished' END INTO v_state FROM ended WHERE number = v_job.number;
        END IF;
        answers := answers || v_told || ended_answer(p_numbers[v_at], p_tokens[v_at], 'counted', v_state);
        v_rung := true;
    END LOOP;
    IF p_resolve AND v_rung THEN
        FOR v_queue IN SELECT q.* FROM queue q WHERE q.id = ANY (v_queues) ORDER BY q.id LOOP
            answers := answers || resolve(v_queue, v_now);
        END LOOP;
    END IF;
END $$;

CREATE FUNCTION ended_answer(p_number bigint, p_token bigint, p_outcome text, p_state text) RETURNS answer LANGUAGE sql AS
$$ SELECT ROW('ended', p_number, NULL, p_outcome, p_state, p_token, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL)::answer $$;

-- Answers the doorbells of jobs that others wait for. It never waits for a lock: what somebody has
-- locked is left for the next call.
CREATE FUNCTION resolve(p_queue queue, p_now bigint, p_most int DEFAULT 1024, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE
    v_bell edge_bell;
    v_edge edge;
    v_job job;
    v_died boolean;
    v_done boolean;
    v_last bigint := 0;
BEGIN
    told := '{}';
    IF NOT EXISTS (SELECT FROM edge_bell WHERE queue = p_queue.id) THEN RETURN; END IF;
    FOR v_rounds IN 1 .. p_most LOOP
        SELECT * INTO v_bell FROM edge_bell WHERE queue = p_queue.id AND id > v_last
        ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        v_last := v_bell.id;
        -- If it lives and nobody ends it just now, each later end sees the edges that there are.
        PERFORM FROM job WHERE number = v_bell.awaited FOR KEY SHARE SKIP LOCKED;
        IF FOUND THEN
            DELETE FROM edge_bell WHERE id = v_bell.id;
            CONTINUE;
        END IF;
        CONTINUE WHEN EXISTS (SELECT FROM job WHERE number = v_bell.awaited);
        SELECT died INTO v_died FROM ended WHERE number = v_bell.awaited;
        v_died := coalesce(v_died, v_bell.died, false);
        v_done := true;
        FOR v_edge IN SELECT * FROM edge WHERE awaited = v_bell.awaited ORDER BY job LOOP
            SELECT * INTO v_job FROM job WHERE number = v_edge.job FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                -- It is locked, or it is gone.
                v_done := v_done AND NOT EXISTS (SELECT FROM job WHERE number = v_edge.job);
            ELSIF NOT EXISTS (SELECT FROM edge WHERE awaited = v_edge.awaited AND job = v_edge.job) THEN
                -- Another one has answered another bell of this job since the loop began.
                CONTINUE;
            ELSIF v_job.state <> 'waiting' THEN
                DELETE FROM edge WHERE awaited = v_edge.awaited AND job = v_edge.job;
            ELSIF v_died AND v_job.on_dead = 'die' THEN
                told := told || end_unrun(p_queue, v_job, died_with(id_of_gone(v_bell.awaited)), NULL, p_now);
            ELSIF NOT (v_died AND v_job.on_dead = 'hold') THEN
                DELETE FROM edge WHERE awaited = v_edge.awaited AND job = v_edge.job;
                CONTINUE WHEN NOT FOUND;
                UPDATE job SET pending = pending - 1,
                    state = CASE WHEN pending > 1 THEN state ELSE 'ready' END,
                    place = CASE WHEN pending > 1 THEN place ELSE nextval('place') END,
                    at = CASE WHEN pending > 1 THEN at ELSE greatest(due, p_now) END,
                    since = CASE WHEN pending > 1 THEN since ELSE p_now END
                WHERE number = v_job.number RETURNING * INTO v_job;
                IF v_job.state = 'ready' THEN
                    told := told || told(id_of(v_job.name, v_job.number), shown(v_job.state, v_job.at, p_now));
                    PERFORM ring(p_queue.id, p_queue.bell) WHERE v_job.at <= p_now;
                END IF;
            END IF;
        END LOOP;
        DELETE FROM edge_bell WHERE v_done AND id = v_bell.id;
    END LOOP;
END $$;

CREATE FUNCTION died_with(p_id text) RETURNS text LANGUAGE sql AS
$$ SELECT 'the job ' || to_json(p_id)::text || ' is dead, and this one was to run after it' $$;

CREATE FUNCTION id_of_gone(p_number bigint) RETURNS text LANGUAGE sql AS
$$ SELECT coalesce((SELECT id_of(name, number) FROM ended WHERE number = p_number), '~' || p_number) $$;

-- For every language: ends jobs well. The answer has the numbers of those that counted: one that is
-- missing was no longer the caller's, and nothing was written for it. Behind writes of the caller's
-- own in one transaction, their effects and the end are one.
CREATE FUNCTION finish(p_jobs bigint[], p_tokens bigint[], p_data text[] DEFAULT NULL) RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN counted(p_jobs, p_tokens, array_fill('finished'::text, ARRAY[cardinality(p_jobs)]), '{}', '{}', coalesce(p_data, '{}'));
END $$;

-- Ends attempts. The answer has the numbers of those that counted.
CREATE FUNCTION counted(p_jobs bigint[], p_tokens bigint[], p_ends text[], p_ats bigint[], p_errors text[], p_datas text[])
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE v_answers answer[];
BEGIN
    SELECT e.answers INTO v_answers FROM end_many(p_jobs, p_tokens, p_ends, p_ats, p_errors, p_datas, false, NULL,
        (SELECT q.id FROM job j JOIN queue q ON q.id = j.queue
            WHERE j.number = p_jobs[1] AND q.retention = 0 AND NOT q.limited)) e;
    RETURN ARRAY(SELECT a.number FROM unnest(v_answers) a WHERE a.what = 'ended' AND a.outcome <> 'halt');
END $$;

-- The same, with answers as `turn` has. With `p_all`, a lease that is over is an error: then nothing of
-- the caller's transaction can be committed.
CREATE FUNCTION end_in(p_jobs bigint[], p_tokens bigint[], p_datas text[], p_all boolean) RETURNS SETOF answer
LANGUAGE plpgsql AS $$
DECLARE v_answers answer[];
BEGIN
    SELECT e.answers INTO v_answers FROM end_many(p_jobs, p_tokens, array_fill('finished'::text, ARRAY[cardinality(p_jobs)]),
        '{}', '{}', p_datas, false, NULL, NULL) e;
    IF p_all AND EXISTS (SELECT FROM unnest(v_answers) a WHERE a.what = 'ended' AND a.outcome = 'halt') THEN
        RAISE 'waterline: the job is no longer its worker''s' USING ERRCODE = 'WQ007';
    END IF;
    RETURN QUERY SELECT * FROM unnest(v_answers);
END $$;

-- What has become of ends whose answer was lost: held (it was not written), counted, or gone (the job
-- is no longer where a token says more), in their order. It waits for a transaction that may be about
-- to write one.
CREATE FUNCTION ended_by(p_jobs bigint[], p_tokens bigint[]) RETURNS TABLE (number bigint, outcome text, state text)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM job j WHERE j.number = ANY (p_jobs) ORDER BY j.number FOR UPDATE;
    RETURN QUERY SELECT a.number,
        CASE WHEN j.token = a.token THEN 'held' WHEN e.token = a.token THEN 'counted' ELSE 'gone' END,
        CASE WHEN e.died THEN 'dead' WHEN e.number IS NOT NULL THEN 'finished'
            WHEN j.number IS NOT NULL THEN shown(j.state, j.at, clock()) END
        FROM unnest(p_jobs, p_tokens) WITH ORDINALITY a(number, token, at)
        LEFT JOIN job j ON j.number = a.number LEFT JOIN ended e ON e.number = a.number ORDER BY a.at;
END $$;

-- The same for attempts that have failed. Each is tried again after its `p_delays` milliseconds, or,
-- without one, as its retry says. One of `p_bury` is dead, whatever attempts are left.
CREATE FUNCTION fail(p_jobs bigint[], p_tokens bigint[], p_errors text[] DEFAULT NULL, p_delays bigint[] DEFAULT NULL,
    p_bury boolean[] DEFAULT NULL) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN counted(p_jobs, p_tokens,
        ARRAY(SELECT CASE WHEN e.bury THEN 'buried' ELSE 'failed' END
            FROM unnest(p_jobs, p_bury) WITH ORDINALITY AS e(job, bury, at) ORDER BY e.at),
        ARRAY(SELECT clock() + e.delay FROM unnest(p_jobs, p_delays) WITH ORDINALITY AS e(job, delay, at) ORDER BY e.at),
        coalesce(p_errors, '{}'), '{}');
END $$;

-- The same for jobs that are not ready: each comes again after its `p_delays` milliseconds (without one,
-- at once), and the attempt does not count.
CREATE FUNCTION snooze(p_jobs bigint[], p_tokens bigint[], p_delays bigint[] DEFAULT NULL) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN counted(p_jobs, p_tokens, array_fill('snoozed'::text, ARRAY[cardinality(p_jobs)]),
        ARRAY(SELECT clock() + coalesce(e.delay, 0)
            FROM unnest(p_jobs, p_delays) WITH ORDINALITY AS e(job, delay, at) ORDER BY e.at), '{}', '{}');
END $$;
