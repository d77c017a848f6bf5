-- The ends that a worker calls, for many attempts at once.

-- Ends that were written, by their places among those that were asked for, with the queues of their jobs. `dropped`:
-- those that are not kept. `freed`: the limits whose places are free now.
CREATE TYPE ending AS (places bigint[], queues int[], dropped bigint[], freed text[]);

-- The most common ends: jobs of a queue without limits which finish and leave nothing (null: there is no such queue).
-- It returns their places. What this does not take, `finish_kept` does, and then `end_one`. All three compare the
-- token alone: with the state, the planner would take the index of running jobs, whose dead entries it does not know.
CREATE FUNCTION finish_dropped(p_queue int, p_numbers bigint[], p_tokens bigint[], p_ends text[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE v_places bigint[];
BEGIN
    IF p_queue IS NULL THEN RETURN '{}'; END IF;
    IF cardinality(p_numbers) = 1 THEN
        DELETE FROM job j WHERE j.number = p_numbers[1] AND j.token = p_tokens[1] AND p_ends[1] = 'finished'
            AND j.resubmit IS NULL AND j.skips_from IS NULL
            AND j.queue = p_queue AND coalesce(j.retention, 0) = 0 AND j.name IS NULL;
        RETURN CASE WHEN FOUND THEN '{1}' ELSE '{}' END;
    END IF;
    IF cardinality(p_numbers) > 64 THEN
        WITH d AS (
            -- All calls that lock many jobs go by their numbers, or they would wait for each other.
            DELETE FROM job j USING (
                SELECT * FROM unnest(p_numbers, p_tokens, p_ends) WITH ORDINALITY u(number, token, end_, place)
                WHERE u.end_ = 'finished' ORDER BY u.number) a
            WHERE j.number = a.number AND j.token = a.token AND j.resubmit IS NULL AND j.skips_from IS NULL
                AND j.queue = p_queue AND coalesce(j.retention, 0) = 0 AND j.name IS NULL
            RETURNING a.place)
        SELECT coalesce(array_agg(place), '{}') INTO v_places FROM d;
        RETURN v_places;
    END IF;
    -- With few jobs, a join with arrays would cost half as much again. The time of this one grows with their square.
    WITH d AS (
        DELETE FROM job j WHERE j.number = ANY (p_numbers) AND j.token = p_tokens[array_position(p_numbers, j.number)]
            AND p_ends[array_position(p_numbers, j.number)] = 'finished' AND j.resubmit IS NULL AND j.skips_from IS NULL
            AND j.queue = p_queue AND coalesce(j.retention, 0) = 0 AND j.name IS NULL
        RETURNING array_position(p_numbers, j.number) AS place)
    SELECT coalesce(array_agg(place), '{}') INTO v_places FROM d;
    RETURN v_places;
END $$;

-- Ends jobs that finish, whatever they leave. Returns the limits of the queue `p_claims`, whose held
-- jobs the caller takes; other bells ring.
CREATE FUNCTION finish_kept(p_numbers bigint[], p_tokens bigint[], p_ends text[], p_datas text[], p_claims int, p_now bigint)
RETURNS ending LANGUAGE plpgsql AS $$
DECLARE v_ended ending; v_left leaving[];
BEGIN
    WITH d AS (
        DELETE FROM job j USING queue q, (
            SELECT * FROM unnest(p_numbers, p_tokens, p_ends, p_datas) WITH ORDINALITY u(number, token, end_, data, place)
            WHERE u.end_ = 'finished' ORDER BY u.number) a
        WHERE j.number = a.number AND j.token = a.token AND j.resubmit IS NULL AND j.skips_from IS NULL AND q.id = j.queue
        RETURNING j.*, a.place AS asked, a.data AS new_data, q.ids_for, coalesce(j.retention, q.retention) AS time,
            -- As in `left_by`. (A query with a limit is run for each job, and never reads a list of all limits.)
            CASE WHEN j.key IS NOT NULL AND (q.limit_sorts LIKE '%a%' OR q.limit_sorts LIKE '%k%' AND (SELECT true FROM limits l
                WHERE l.queue = j.queue AND l.name = 'k' || j.key AND l.at_once IS NOT NULL LIMIT 1)) THEN j.key END AS left_key,
            CASE WHEN j.counted AND q.limit_sorts LIKE '%c%' AND (SELECT true FROM limits l
                WHERE l.queue = j.queue AND l.name = 't' || j.kind AND l.at_once IS NOT NULL LIMIT 1) THEN j.kind END AS left_kind
    ), kept AS (
        INSERT INTO ended (number, queue, state, priority, at, place, kind, payload, name, key, failures, crashes,
            pushed, due, since, error, data, meta, fraction, note, noted, retry, retention, uniq, uniq_until,
            fingerprint, root, root_at, is_root, expires, cost, on_dead, token, died, gone_at)
        SELECT number, queue, NULL, priority, NULL, place, kind, payload, name, key, failures, crashes,
            pushed, due, p_now, error, coalesce(new_data, data), meta, fraction, note, noted, retry, retention, uniq,
            uniq_until, fingerprint, root, root_at, is_root, expires, cost, on_dead, token, false, kept_until(time, p_now)
        FROM d WHERE time <> 0
    )
    SELECT coalesce(array_agg(asked), '{}'), coalesce(array_agg(queue), '{}'),
        coalesce(array_agg(asked) FILTER (WHERE time = 0), '{}'),
        array_agg(ROW(queue, CASE WHEN time = 0 AND ids_for > 0 THEN name END, ids_for, left_key, left_kind)::leaving)
            FILTER (WHERE left_key IS NOT NULL OR left_kind IS NOT NULL OR time = 0 AND ids_for > 0 AND name IS NOT NULL)
    INTO v_ended.places, v_ended.queues, v_ended.dropped, v_left FROM d;
    v_ended.freed := CASE WHEN v_left IS NULL THEN '{}' ELSE leave_behind(v_left, p_claims, p_now) END;
    RETURN v_ended;
END $$;

-- The answers to ends, and the limits of the queue `p_claims` whose places are free now. If all have ended well and
-- are in one state, there is no answer: then `is_all` is true, and `state` is that state. `told` has what else
-- happened.
CREATE TYPE ends AS (is_all boolean, state text, answers answer[], told answer[], freed text[]);

-- Ends attempts. There is a row `ended` for those of each outcome and state. `p_done` are the places of those that
-- `finish_dropped` has ended in the queue `p_drops`.
CREATE FUNCTION end_many(p_numbers bigint[], p_tokens bigint[], p_ends text[], p_ats bigint[], p_errors text[],
    p_datas text[], p_resolve boolean, p_claims int, p_drops int, p_done bigint[]) RETURNS ends LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := clock();
    v_asked int := coalesce(cardinality(p_numbers), 0);
    v_ended ending;
    v_ends ends;
    v_queues int[];
    v_others record;
    v_told answer[];
BEGIN
    v_ended := ROW('{}'::bigint[], '{}'::int[], '{}'::bigint[], '{}'::text[])::ending;
    IF cardinality(p_done) < v_asked THEN
        BEGIN
            v_ended := finish_kept(p_numbers, p_tokens, p_ends, p_datas, p_claims, v_now);
        EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
            -- One of them is damaged, so each one ends by itself.
        END;
    END IF;
    v_ends.freed := v_ended.freed;
    v_ends.answers := '{}';
    v_ends.told := '{}';
    v_ends.is_all := v_asked IN (cardinality(p_done) + cardinality(v_ended.dropped),
        cardinality(v_ended.places) - cardinality(v_ended.dropped));
    IF v_ends.is_all THEN
        v_ends.state := CASE WHEN cardinality(v_ended.dropped) < cardinality(v_ended.places) THEN 'finished' END;
    ELSE
        -- Those that the first statement has ended are not kept.
        v_ended.dropped := p_done || v_ended.dropped;
        v_ends.answers := ARRAY(SELECT ended_answer('finished', CASE WHEN e.is_kept THEN 'finished' END, array_agg(e.place)) FROM (
            SELECT u.place, u.place <> ALL (v_ended.dropped) FROM unnest(p_done || v_ended.places) u(place)) e(place, is_kept) GROUP BY e.is_kept);
    END IF;
    IF pg_sequence_last_value('edge_bells') IS NOT NULL THEN
        v_queues := ring_edges_of(array_fill(p_drops, ARRAY[cardinality(p_done)]) || v_ended.queues, p_numbers,
            p_done || v_ended.places);
    END IF;
    IF cardinality(p_done) + cardinality(v_ended.places) < v_asked THEN
        SELECT * INTO v_others FROM end_others(p_numbers, p_tokens, p_ends, p_ats, p_errors, p_datas, p_done || v_ended.places, v_now);
        v_ends.answers := v_ends.answers || v_others.answers;
        v_ends.told := v_others.told;
        v_queues := v_queues || v_others.queues;
    END IF;
    IF p_resolve AND cardinality(v_queues) > 0 THEN
        FOR v_told IN SELECT (resolve(q, v_now)).told FROM queue q WHERE q.id = ANY (v_queues) ORDER BY q.id LOOP
            v_ends.told := v_ends.told || v_told;
        END LOOP;
    END IF;
    RETURN v_ends;
END $$;

-- Rings for the waiters of the jobs at these places, which have finished, and returns the queues of these jobs. A new
-- statement: it sees each edge that was there when the rows of these jobs were locked.
CREATE FUNCTION ring_edges_of(p_queues int[], p_numbers bigint[], p_places bigint[]) RETURNS int[] LANGUAGE plpgsql AS $$
DECLARE v_rung int[];
BEGIN
    WITH rung AS (
        INSERT INTO edge_bell (queue, awaited, died)
        SELECT n.queue, p_numbers[n.place], false FROM unnest(p_queues, p_places) n(queue, place)
        WHERE EXISTS (SELECT FROM edge WHERE awaited = p_numbers[n.place]) OR NOT is_read_committed() RETURNING queue)
    SELECT array_agg(DISTINCT queue) INTO v_rung FROM rung;
    RETURN v_rung;
END $$;

-- Ends attempts, except those at `p_done`. If that fails, it ends each by itself, so that a damaged row holds up no
-- others.
CREATE FUNCTION end_others(p_numbers bigint[], p_tokens bigint[], p_ends text[], p_ats bigint[], p_errors text[],
    p_datas text[], p_done bigint[], p_now bigint, OUT answers answer[], OUT told answer[], OUT queues int[]) LANGUAGE plpgsql AS $$
DECLARE v_at bigint; v_one record; v_told answer; v_reason text;
BEGIN
    SELECT e.answers, e.told, e.queues INTO answers, told, queues
    FROM end_each(p_numbers, p_tokens, p_ends, p_ats, p_errors, p_datas, p_done, p_now) e;
EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
    answers := '{}';
    told := '{}';
    queues := '{}';
    FOR v_at IN SELECT a FROM generate_series(1, cardinality(p_numbers)) a WHERE a <> ALL (p_done) ORDER BY a LOOP
        BEGIN
            v_one := end_each(ARRAY[p_numbers[v_at]], ARRAY[p_tokens[v_at]], ARRAY[p_ends[v_at]], ARRAY[p_ats[v_at]],
                ARRAY[p_errors[v_at]], ARRAY[p_datas[v_at]], '{}', p_now);
            FOREACH v_told IN ARRAY v_one.told LOOP told := told || v_told; END LOOP;
            FOREACH v_told IN ARRAY v_one.answers LOOP answers := answers || ended_answer(v_told.outcome, v_told.state, ARRAY[v_at]); END LOOP;
            queues := queues || v_one.queues;
        EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
            v_reason := SQLERRM;
            FOR v_told IN SELECT t.* FROM job j JOIN queue q ON q.id = j.queue, set_aside(q, j.number, v_reason, p_now) s, unnest(s) t
                WHERE j.number = p_numbers[v_at] LOOP
                told := told || v_told;
            END LOOP;
            answers := answers || ended_answer('halt', NULL, ARRAY[v_at]);
        END;
    END LOOP;
    answers := ARRAY(SELECT ended_answer(a.outcome, a.state, array_agg(a.more::bigint)) FROM unnest(answers) a GROUP BY a.outcome, a.state);
END $$;

-- Ends attempts one by one, except those at the places `p_done`.
CREATE FUNCTION end_each(p_numbers bigint[], p_tokens bigint[], p_ends text[], p_ats bigint[], p_errors text[],
    p_datas text[], p_done bigint[], p_now bigint, OUT answers answer[], OUT told answer[], OUT queues int[]) LANGUAGE plpgsql AS $$
DECLARE
    v_job job;
    v_queue queue;
    v_told answer[];
    v_one answer;
    v_state text;
    v_left leaving[] := '{}';
    v_outcomes text[] := '{}';
    v_states text[] := '{}';
BEGIN
    told := '{}';
    queues := '{}';
    FOR v_at IN 1 .. cardinality(p_numbers) LOOP
        CONTINUE WHEN v_at = ANY (p_done);
        SELECT * INTO v_job FROM job WHERE number = p_numbers[v_at] AND token = p_tokens[v_at] FOR UPDATE;
        IF NOT FOUND THEN
            v_outcomes[v_at] := 'halt';
            v_states[v_at] := NULL;
            CONTINUE;
        END IF;
        SELECT * INTO v_queue FROM queue WHERE id = v_job.queue;
        v_told := end_one(v_queue, v_job, p_ends[v_at], p_ats[v_at], p_errors[v_at], p_datas[v_at],
            p_now - v_job.since, p_now);
        v_left := v_left || left_by(v_queue, v_job);
        SELECT shown(state, at, p_now) INTO v_state FROM job WHERE number = v_job.number;
        IF NOT FOUND THEN
            SELECT CASE WHEN died THEN 'dead' ELSE 'finished' END INTO v_state FROM ended WHERE number = v_job.number;
        END IF;
        -- A single element in a statement of its own is appended in place; otherwise the list is copied each time.
        FOREACH v_one IN ARRAY v_told LOOP told := told || v_one; END LOOP;
        v_outcomes[v_at] := 'counted';
        v_states[v_at] := v_state;
        queues := queues || v_queue.id;
    END LOOP;
    PERFORM leave_behind(v_left, NULL, p_now);
    answers := ARRAY(SELECT ended_answer(o.outcome, o.state, array_agg(o.place)) FROM (
        SELECT n, v_outcomes[n], v_states[n] FROM generate_series(1, cardinality(p_numbers)) n WHERE v_outcomes[n] IS NOT NULL) o(place, outcome, state)
        GROUP BY o.outcome, o.state);
END $$;

CREATE FUNCTION ended_answer(p_outcome text, p_state text, p_places bigint[]) RETURNS answer LANGUAGE sql AS
$$ SELECT ROW('ended', NULL, NULL, p_outcome, p_state, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, array_to_string(p_places, ','))::answer $$;

-- Refuses data with more bytes than the queues of these jobs take.
CREATE FUNCTION check_datas(p_jobs bigint[], p_datas text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM check_size('the data of a job', u.data, q.max_payload) FROM unnest(p_jobs, p_datas) u(number, data)
        JOIN job j ON j.number = u.number JOIN queue q ON q.id = j.queue WHERE u.data IS NOT NULL;
END $$;

-- For every language: ends jobs well. The answer has the numbers of those that counted: a job that is missing was no
-- longer the caller's, and nothing was written for it. After writes of the caller in one transaction, their effects
-- and the end are one.
CREATE FUNCTION finish(p_jobs bigint[], p_tokens bigint[], p_data text[] DEFAULT NULL) RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN counted(p_jobs, p_tokens, array_fill('finished'::text, ARRAY[cardinality(p_jobs)]), '{}', '{}', coalesce(p_data, '{}'));
END $$;

-- Ends attempts. The answer has the numbers of those that counted.
CREATE FUNCTION counted(p_jobs bigint[], p_tokens bigint[], p_ends text[], p_ats bigint[], p_errors text[], p_datas text[])
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE v_drops int; v_ends ends;
BEGIN
    IF cardinality(p_jobs) > 256 THEN PERFORM refuse_count(p_jobs); END IF;
    IF cardinality(p_datas) > 0 THEN PERFORM check_datas(p_jobs, p_datas); END IF;
    v_drops := (SELECT q.id FROM job j JOIN queue q ON q.id = j.queue WHERE j.number = p_jobs[1] AND q.retention = 0 AND NOT q.limited);
    v_ends := end_many(p_jobs, p_tokens, p_ends, p_ats, p_errors, p_datas, false, NULL, v_drops,
        finish_dropped(v_drops, p_jobs, p_tokens, p_ends));
    IF v_ends.is_all THEN RETURN p_jobs; END IF;
    RETURN ARRAY(SELECT p_jobs[n::int] FROM unnest(v_ends.answers) a, unnest(string_to_array(a.more, ',')) n WHERE a.outcome <> 'halt');
END $$;

-- The same, with answers like those of `turn`. With `p_all`, an expired lease is an error: then nothing in the
-- caller's transaction can be committed.
CREATE FUNCTION end_in(p_jobs bigint[], p_tokens bigint[], p_datas text[], p_all boolean) RETURNS SETOF answer
LANGUAGE plpgsql AS $$
DECLARE v_ends ends;
BEGIN
    IF cardinality(p_jobs) > 256 THEN PERFORM refuse_count(p_jobs); END IF;
    PERFORM check_datas(p_jobs, p_datas);
    v_ends := end_many(p_jobs, p_tokens, array_fill('finished'::text, ARRAY[cardinality(p_jobs)]), '{}', '{}', p_datas, false, NULL, NULL, '{}');
    IF p_all AND EXISTS (SELECT FROM unnest(v_ends.answers) a WHERE a.outcome = 'halt') THEN
        RAISE 'waterline: the job is no longer its worker''s' USING ERRCODE = 'WQ007';
    END IF;
    IF v_ends.is_all THEN RETURN NEXT word('finished', v_ends.state); END IF;
    RETURN QUERY SELECT * FROM few(v_ends.told) UNION ALL SELECT * FROM unnest(v_ends.answers);
END $$;

-- What became of ends whose answer was lost: held (it was not written), counted, or gone (the job is no longer where
-- a token says more), in their order. It waits for a transaction that may be about to write one.
CREATE FUNCTION ended_by(p_jobs bigint[], p_tokens bigint[], OUT outcomes text[], OUT states text[]) LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(p_jobs) > 256 THEN PERFORM refuse_count(p_jobs); END IF;
    PERFORM FROM job j WHERE j.number = ANY (p_jobs) ORDER BY j.number FOR UPDATE;
    SELECT array_agg(CASE WHEN j.token = a.token THEN 'held' WHEN e.token = a.token THEN 'counted' ELSE 'gone' END ORDER BY a.at),
        array_agg(CASE WHEN e.died THEN 'dead' WHEN e.number IS NOT NULL THEN 'finished'
            WHEN j.number IS NOT NULL THEN shown(j.state, j.at, clock()) END ORDER BY a.at)
    INTO outcomes, states FROM unnest(p_jobs, p_tokens) WITH ORDINALITY a(number, token, at)
        LEFT JOIN job j ON j.number = a.number LEFT JOIN ended e ON e.number = a.number;
END $$;

-- The same for attempts that have failed. Each is tried again after its `p_delays` milliseconds, or, without one, as
-- its retry says. A job of `p_bury` is dead, whatever attempts are left.
CREATE FUNCTION fail(p_jobs bigint[], p_tokens bigint[], p_errors text[] DEFAULT NULL, p_delays bigint[] DEFAULT NULL,
    p_bury boolean[] DEFAULT NULL) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN counted(p_jobs, p_tokens,
        ARRAY(SELECT CASE WHEN e.bury THEN 'buried' ELSE 'failed' END
            FROM unnest(p_jobs, p_bury) WITH ORDINALITY AS e(job, bury, at) ORDER BY e.at),
        ARRAY(SELECT -bounded(e.delay) FROM unnest(p_jobs, p_delays) WITH ORDINALITY AS e(job, delay, at) ORDER BY e.at),
        coalesce(p_errors, '{}'), '{}');
END $$;

-- The same for jobs that are not ready: each comes again after its `p_delays` milliseconds (without one, at once),
-- and the attempt does not count.
CREATE FUNCTION snooze(p_jobs bigint[], p_tokens bigint[], p_delays bigint[] DEFAULT NULL) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN counted(p_jobs, p_tokens, array_fill('snoozed'::text, ARRAY[cardinality(p_jobs)]),
        ARRAY(SELECT -coalesce(bounded(e.delay), 0)
            FROM unnest(p_jobs, p_delays) WITH ORDINALITY AS e(job, delay, at) ORDER BY e.at), '{}', '{}');
END $$;
