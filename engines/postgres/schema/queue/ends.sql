-- The ends of attempts, and what they mean for the job and for those that wait for it.

-- The pause before the next attempt, in milliseconds; null: none. `p_attempt` is the number of failed attempts.
CREATE FUNCTION pause_of(p_retry jsonb, p_attempt int, p_chance float8) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_first float8 := least(coalesce((p_retry->>'first_ms')::float8, 1000), 3.2e16);
    v_cap float8 := least(coalesce((p_retry->>'cap_ms')::float8, 3600000), 3.2e16);
    v_attempts numeric := (p_retry->>'attempts')::numeric;
    v_jitter float8 := least(greatest(coalesce((p_retry->>'jitter')::float8, 0), 0), 1);
    v_times float8;
    v_pause float8;
BEGIN
    IF p_attempt >= v_attempts THEN RETURN NULL; END IF;
    -- The exponent is bounded, since a power beyond the largest number is an error.
    v_times := CASE coalesce(p_retry->>'growth', 'doubling')
        WHEN 'doubling' THEN power(2::float8, least(p_attempt - 1, 200))
        WHEN 'factor' THEN exp(least(ln(greatest(coalesce((p_retry->>'factor')::float8, 2), 1)) * (p_attempt - 1), 200))
        WHEN 'quadratic' THEN p_attempt::float8 * p_attempt
        ELSE 1 END;
    v_pause := CASE WHEN p_retry->>'growth' = 'fixed' THEN v_first ELSE least(v_first * v_times, v_cap) END;
    -- A million years: a time to which it is added is still a number.
    v_pause := least(greatest(v_pause * (1 - v_jitter * (1 - p_chance)), 0), 3.2e16);
    RETURN ceil(round(v_pause::numeric, 6))::bigint;
END $$;

-- Until when an ended job is kept; null: for ever.
CREATE FUNCTION kept_until(p_time bigint, p_now bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN p_time < 0 THEN NULL ELSE p_now + least(p_time, 32000000000000000) END $$;

-- Tells about a job; or that its waiters read it, since its data or its error is long.
CREATE FUNCTION told_briefly(p_id text, p_state text, p_data text, p_error text DEFAULT NULL) RETURNS answer LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(octet_length(p_data), 0) + coalesce(octet_length(p_error), 0) > 65536 THEN RETURN more_answer(1); END IF;
    RETURN told(p_id, p_state, p_data, p_error);
END $$;

-- Remembers the ids that go; null: a job had none.
CREATE FUNCTION forget(p_queue queue, p_names text[], p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    p_names := array_remove(p_names, NULL);
    IF cardinality(p_names) > 0 AND p_queue.ids_for > 0 THEN
        INSERT INTO gone AS g SELECT p_queue.id, n.name, p_now + p_queue.ids_for, p_now
        FROM (SELECT DISTINCT u.name FROM unnest(p_names) u(name) ORDER BY u.name) n
        ON CONFLICT (queue, name) DO UPDATE SET until = excluded.until, since = excluded.since;
    END IF;
END $$;

-- What a job leaves beside its row: an id to remember, and places in limits. Its key and its kind are there only if a
-- limit bounds how many of them run at once: otherwise no job waits for the end of another one.
CREATE TYPE leaving AS (queue int, name text, ids_for bigint, key text, kind text);

-- The places that a running job leaves.
CREATE FUNCTION left_by(p_queue queue, p_job job) RETURNS leaving LANGUAGE plpgsql AS $$
DECLARE v_left leaving;
BEGIN
    IF p_queue.limited AND p_job.state = 'running' THEN
        v_left.queue := p_queue.id;
        IF p_job.key IS NOT NULL AND (p_queue.limit_sorts LIKE '%a%' OR p_queue.limit_sorts LIKE '%k%'
            AND (bounds_of(p_queue.id, 'k' || p_job.key)).at_once IS NOT NULL) THEN
            v_left.key := p_job.key;
        END IF;
        IF p_job.counted AND (bounds_of(p_queue.id, 't' || p_job.kind)).at_once IS NOT NULL THEN v_left.kind := p_job.kind; END IF;
    END IF;
    RETURN v_left;
END $$;

-- Remembers the ids of jobs that are gone, and rings once at each limit that they leave. It returns those of
-- `p_claims`, at which it does not ring.
CREATE FUNCTION leave_behind(p_left leaving[], p_claims int, p_now bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE v_one leaving; v_name text; v_freed text[] := '{}'; v_rings boolean := false;
BEGIN
    FOREACH v_one IN ARRAY p_left LOOP
        IF v_one.name IS NOT NULL THEN
            INSERT INTO gone (queue, name, until, since) VALUES (v_one.queue, v_one.name, p_now + v_one.ids_for, p_now)
            ON CONFLICT (queue, name) DO UPDATE SET until = excluded.until, since = excluded.since;
        END IF;
        FOREACH v_name IN ARRAY ARRAY['k' || v_one.key, 't' || v_one.kind] LOOP
            IF v_name IS NULL THEN CONTINUE;
            ELSIF v_one.queue IS DISTINCT FROM p_claims THEN v_rings := true;
            ELSIF v_name <> ALL (v_freed) THEN v_freed := v_freed || v_name;
            END IF;
        END LOOP;
    END LOOP;
    IF v_rings THEN
        INSERT INTO freed (queue, at, name) SELECT DISTINCT l.queue, p_now, n.name
        FROM unnest(p_left) l, LATERAL (VALUES ('k' || l.key), ('t' || l.kind)) n(name)
        WHERE n.name IS NOT NULL AND l.queue IS DISTINCT FROM p_claims;
    END IF;
    RETURN v_freed;
END $$;

-- Puts a job, which the caller has locked, among those that have ended.
CREATE FUNCTION settle(p_queue queue, p_job job, p_died boolean, p_skipped text, p_now bigint)
RETURNS answer[] LANGUAGE plpgsql AS $$
DECLARE
    v_time bigint := CASE WHEN p_died THEN p_queue.dead_for ELSE coalesce(p_job.retention, p_queue.retention) END;
    v_id text := id_of(p_job.name, p_job.number);
    v_told answer[];
    v_waited_for text[];
BEGIN
    IF p_died AND p_job.state = 'waiting' THEN
        SELECT array_agg(w.id ORDER BY w.id COLLATE "C") INTO v_waited_for FROM (
            SELECT id_of(n.name, x.awaited) AS id FROM edge x, LATERAL (
                SELECT j.name FROM job j WHERE j.number = x.awaited
                UNION ALL SELECT e.name FROM ended e WHERE e.number = x.awaited LIMIT 1) n
            WHERE x.job = p_job.number) w;
    END IF;
    DELETE FROM job WHERE number = p_job.number;
    DELETE FROM edge WHERE job = p_job.number;
    PERFORM ring_edges(p_queue.id, p_job.number, p_died);
    IF v_time = 0 THEN
        PERFORM forget(p_queue, ARRAY[p_job.name], p_now);
        RETURN ARRAY[told(v_id, CASE WHEN p_died THEN 'dead' ELSE 'finished' END, p_job.data, CASE WHEN p_died THEN p_job.error END)];
    END IF;
    v_told := ARRAY[told_briefly(v_id, CASE WHEN p_died THEN 'dead' ELSE 'finished' END, p_job.data, CASE WHEN p_died THEN p_job.error END)];
    p_job.state := NULL;
    p_job.at := NULL;
    p_job.since := p_now;
    p_job.held_by := NULL;
    p_job.pending := 0;
    p_job.counted := false;
    p_job.silent := false;
    p_job.stopping := false;
    p_job.suspect := false;
    INSERT INTO ended SELECT p_died, kept_until(v_time, p_now), p_skipped, v_waited_for, p_job.*;
    RETURN v_told;
END $$;

-- Ends a waiting job that is not to run: it is dead with this error, or was skipped for this reason.
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

-- How an attempt whose lease has expired ends. A stop wins: it has cut the attempt short, so neither the silence after
-- it nor the death of the process says anything about the job. (A test compares it with `rules/ends.rs`.)
CREATE FUNCTION end_of_lease(p_silent boolean, p_stopping boolean) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN p_stopping THEN 'put_back' WHEN p_silent THEN 'failed' ELSE 'crashed' END $$;

-- What becomes of a job whose attempt has ended: finish, die or wait (until it is due; `named`: the user named that
-- time), with this error and these numbers of failures and crashes.
CREATE FUNCTION next_of(p_queue queue, p_job job, p_end text, p_at bigint, p_error text, p_lasted bigint, p_now bigint,
    OUT next text, OUT due bigint, OUT named boolean, OUT error text, OUT failures int, OUT crashes int) LANGUAGE plpgsql AS $$
DECLARE
    c_no_reason CONSTANT text := 'no reason was given';
    v_pause bigint;
    -- A time up to 0 is a delay.
    v_at bigint := CASE WHEN p_at <= 0 THEN p_now - p_at ELSE p_at END;
BEGIN
    next := 'wait';
    named := coalesce(p_at > 0, false);
    due := 0;
    -- A nullable setting: a comparison with null is not true.
    failures := CASE WHEN coalesce(p_lasted >= p_queue.heal_after, false) THEN 0 ELSE p_job.failures END;
    crashes := p_job.crashes;
    CASE p_end
    WHEN 'finished' THEN
        next := 'finish';
    WHEN 'snoozed' THEN
        due := v_at;
    WHEN 'put_back' THEN
        NULL;
    WHEN 'buried' THEN
        next := 'die';
        failures := failures + 1;
        error := coalesce(p_error, c_no_reason);
    WHEN 'failed' THEN
        failures := failures + 1;
        error := coalesce(p_error, c_no_reason);
        v_pause := pause_of(coalesce(p_job.retry, p_queue.retry), failures, chance());
        next := CASE WHEN v_pause IS NULL THEN 'die' ELSE 'wait' END;
        due := coalesce(v_at, p_now + v_pause);
    WHEN 'crashed' THEN
        crashes := crashes + 1;
        IF coalesce(crashes >= p_queue.max_crashes, false) THEN
            next := 'die';
            error := 'its process died ' || CASE WHEN crashes = 1 THEN 'once' ELSE crashes || ' times' END || ' while it ran';
        ELSIF crashes > 1 THEN
            -- Each process that is up takes it in turn, so a job that kills them all must not come back at once.
            due := p_now + ceil(least(1000 * power(2::float8, least(crashes - 2, 30)), 300000) * chance())::bigint;
        END IF;
    ELSE
        RAISE 'waterline: there is no end "%"', p_end USING ERRCODE = 'WQ002';
    END CASE;
END $$;

-- Ends an attempt of a running job, which the caller has locked. `p_end` is finished, failed (again at `p_at`, or as
-- its retry says), snoozed (until `p_at`), buried, put_back or crashed. `p_at` is a time that the user named, or, up
-- to 0, a delay in milliseconds from now. The caller rings at the limits that the job leaves.
CREATE FUNCTION end_one(p_queue queue, p_job job, p_end text, p_at bigint, p_error text, p_data text,
    p_lasted bigint, p_now bigint, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE
    v_id text := id_of(p_job.name, p_job.number);
    v_new record := next_of(p_queue, p_job, p_end, p_at, p_error, p_lasted, p_now);
    v_suspect boolean := CASE p_end WHEN 'crashed' THEN p_job.crashes >= 1 WHEN 'put_back' THEN p_job.suspect ELSE false END;
BEGIN
    told := '{}';
    IF p_data IS NOT NULL THEN p_job.data := p_data; END IF;
    IF p_end = 'finished' AND p_job.skips_from IS NOT NULL THEN
        WITH old AS (
            DELETE FROM executed WHERE ctid = ANY (ARRAY(SELECT ctid FROM executed
                WHERE queue = p_queue.id AND fingerprint = p_job.fingerprint LIMIT 64 FOR UPDATE SKIP LOCKED)) RETURNING place)
        INSERT INTO executed SELECT p_queue.id, p_job.fingerprint, p_now + 86400000, greatest(p_job.place, max(place)) FROM old;
    END IF;
    IF p_job.resubmit IS NOT NULL AND (v_new.next = 'finish' OR v_new.next = 'die' AND v_new.crashes = p_job.crashes) THEN
        -- The push asked for a new run, which has attempts of its own.
        v_new.crashes := CASE WHEN v_new.next = 'finish' THEN 0 ELSE v_new.crashes END;
        v_new.error := CASE WHEN v_new.next = 'die' THEN v_new.error ELSE '' END;
        v_new.next := 'anew';
        v_new.failures := 0;
        v_new.due := p_job.resubmit;
        v_new.named := p_job.resubmitted IS NULL;
        IF p_job.skips_from IS NOT NULL THEN p_job.skips_from := nextval('place'); END IF;
        IF p_job.noted IS NOT NULL THEN
            told := told || told(v_id, NULL, p_outcome => 'anew');
            p_job.fraction := NULL;
            p_job.note := NULL;
            p_job.noted := NULL;
        END IF;
    END IF;
    IF v_new.next IN ('finish', 'die') THEN
        IF v_new.next = 'die' THEN
            p_job.failures := v_new.failures;
            p_job.crashes := v_new.crashes;
            p_job.error := v_new.error;
            IF p_end = 'crashed' THEN
                told := told || line('died', v_id, p_job.kind, p_job.failures, v_new.error);
            END IF;
        END IF;
        p_job.resubmit := NULL;
        told := told || settle(p_queue, p_job, v_new.next = 'die', NULL, p_now);
        RETURN;
    END IF;
    UPDATE job SET state = 'ready', at = greatest(v_new.due, p_now), token = NULL,
        -- Of the jobs that are due at the same time, the one pushed first is the first.
        place = CASE WHEN v_new.due > p_now THEN number ELSE nextval('place') END, failures = v_new.failures,
        crashes = v_new.crashes, due = v_new.due, named = v_new.named,
        since = CASE WHEN v_new.next = 'anew' AND v_new.due > p_now THEN coalesce(resubmitted, p_now) ELSE p_now END,
        error = coalesce(v_new.error, error),
        data = p_job.data, resubmit = CASE WHEN v_new.next = 'wait' THEN resubmit END, skips_from = p_job.skips_from,
        fraction = p_job.fraction, note = p_job.note, noted = p_job.noted,
        counted = false, silent = false, stopping = false, suspect = v_suspect, worker = NULL, alone_until = NULL
    WHERE number = p_job.number;
    IF v_suspect THEN PERFORM setval(p_queue.floors[11], 1); END IF;
    PERFORM note_waiting(p_queue);
    told := told || told_briefly(v_id, CASE WHEN v_new.due <= p_now THEN 'ready' ELSE 'scheduled' END, p_data);
END $$;

-- Sets aside a job whose row makes calls fail. Its waiters go on waiting.
CREATE FUNCTION set_aside(p_queue queue, p_number bigint, p_reason text, p_now bigint, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE v_job job; v_id text;
BEGIN
    told := '{}';
    DELETE FROM job WHERE number = p_number RETURNING * INTO v_job;
    IF NOT FOUND THEN RETURN; END IF;
    DELETE FROM edge WHERE job = p_number;
    PERFORM leave_behind(ARRAY[left_by(p_queue, v_job)], NULL, p_now);
    v_id := id_of(v_job.name, p_number);
    INSERT INTO damaged AS d VALUES (p_number, v_job.queue, 'job', v_id, v_job.kind, v_job.payload, p_now, p_reason, row_to_json(v_job)::text)
    ON CONFLICT (number) DO UPDATE SET queue = excluded.queue, was = excluded.was, id = excluded.id, kind = excluded.kind,
        payload = excluded.payload, at = excluded.at, reason = excluded.reason, row = excluded.row;
    PERFORM warn(format('the job "%s" of the queue "%s" is damaged, and is set aside', left(v_id, 60), left(p_queue.name, 60)), p_reason,
        'Look at its row in the table "damaged". Then remove it, and push it again if it is still wanted.');
    told := told || told(v_id, 'damaged') || line('damaged', v_id, v_job.kind, v_job.failures, p_reason);
END $$;
