-- Pushes. Each rule of a push is here, so that every language keeps it.
--
-- The settings of a job are a JSON object; each member may be missing:
-- id              the id of the user; a job of the same id is moved, flagged or run again
-- delay_ms        the time until it is due;  run_at: that time itself
-- priority        0 (urgent) to 3 (low); 2 without it
-- key, cost       for limits: its key, and the tokens that it takes (1)
-- retry           {first_ms, growth, factor, cap_ms, attempts, jitter}
-- retention_ms    how long it is kept once it has finished; 0: not at all, -1: for ever
-- unique          {fingerprint, until: claimed | done | within, within_ms, clash: keep | replace | earliest}
-- skip            a fingerprint: it is not run if a twin that began after this push has succeeded
-- root            {signature, at, leaf}
-- expires_ms      it is dead if no worker has taken it by then
-- after, on_dead  the ids of jobs that end before it begins; die, run or hold if one of them dies
-- meta            a JSON object, as text

-- Whether the job of this id is gone, or was made by a push without an id.
CREATE FUNCTION was_there(p_queue int, p_id text, p_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF p_id ~ '^~[1-9][0-9]{0,17}$' THEN
        RETURN substr(p_id, 2)::bigint <= coalesce(pg_sequence_last_value('place'), 0);
    END IF;
    RETURN EXISTS (SELECT FROM gone WHERE queue = p_queue AND name = p_id AND until >= p_now);
END $$;

-- Finds the jobs that a push waits for: those that have not ended, and those that have died, if the job waits for
-- such ones, or dies with one (`died`). `p_own` is the number of the job itself, if it is there.
CREATE FUNCTION awaited_of(p_queue queue, p_id text, p_own bigint, p_after text[], p_on_dead text, p_now bigint,
    OUT awaited bigint[], OUT died text) LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 10000;
    v_other text;
    v_number bigint;
    v_died boolean;
    -- The jobs that the search for a cycle may see.
    v_left bigint := c_most;
    v_seen bigint;
    v_is_own boolean;
BEGIN
    awaited := '{}';
    IF cardinality(p_after) > c_most THEN
        PERFORM refuse(format('a job waits for %s others at most, and not for %s: let it wait for jobs which wait for some of them each',
            c_most, cardinality(p_after)));
    END IF;
    IF p_own IS NOT NULL AND cardinality(p_after) > 0 THEN
        -- Two pushes that change edges of old jobs at once could close a cycle that neither sees.
        PERFORM pg_advisory_xact_lock(lock_of('edges', p_queue.id));
    END IF;
    FOREACH v_other IN ARRAY p_after LOOP
        IF v_other = p_id THEN
            RAISE 'waterline: the job "%" would wait for itself', p_id USING ERRCODE = 'WQ003', DETAIL = v_other, HINT = p_id;
        END IF;
        v_number := number_of(p_queue.id, v_other);
        IF v_number IS NULL THEN
            v_number := ended_of(p_queue.id, v_other);
            IF v_number IS NULL THEN
                CONTINUE WHEN was_there(p_queue.id, v_other, p_now);
                -- (No job has a longer id, and an error is sent before the rollback.)
                v_other := left(v_other, 255);
                RAISE 'waterline: there is no job "%" to wait for', v_other USING ERRCODE = 'WQ004', DETAIL = v_other;
            END IF;
            SELECT e.died INTO v_died FROM ended e WHERE e.number = v_number;
            CONTINUE WHEN NOT coalesce(v_died, false) OR p_on_dead = 'run';
            -- A push of that job waits until this edge is there, and moves it. If it was faster, the job lives.
            PERFORM FROM ended WHERE number = v_number FOR KEY SHARE;
            IF NOT FOUND THEN
                v_number := number_of(p_queue.id, v_other);
                CONTINUE WHEN v_number IS NULL;
                v_died := false;
            END IF;
            IF v_died AND p_on_dead = 'die' THEN
                died := coalesce(died, v_other);
                awaited := awaited || v_number;
                CONTINUE;
            END IF;
        END IF;
        IF p_own IS NOT NULL THEN
            SELECT count(*), coalesce(bool_or(b.number = p_own), false) INTO v_seen, v_is_own FROM (
                WITH RECURSIVE before(number) AS (
                    SELECT v_number UNION SELECT e.awaited FROM before b JOIN edge e ON e.job = b.number)
                SELECT number FROM before LIMIT v_left) b;
            v_left := v_left - v_seen;
            IF v_is_own THEN
                RAISE 'waterline: the job "%" would wait for itself through "%"', p_id, v_other
                    USING ERRCODE = 'WQ003', DETAIL = v_other, HINT = p_id;
            ELSIF v_left <= 0 THEN
                RAISE 'waterline: the job "%" is there already, and so many come before it that nobody can say if it is one of them', p_id
                    USING ERRCODE = 'WQ003', DETAIL = p_id;
            END IF;
        END IF;
        awaited := awaited || v_number;
    END LOOP;
    SELECT coalesce(array_agg(DISTINCT n ORDER BY n), '{}') INTO awaited FROM unnest(awaited) n;
END $$;

-- The waiting jobs, counted up to their bound. Among many dead entries, a late commit may be missed.
CREATE FUNCTION waiting_of(p_queue queue, p_now bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE v_floors bigint[] := looks_from(p_queue.floors, 9, 1::bigint << 52, p_now);
BEGIN
    RETURN (SELECT count(*) FROM (
        (SELECT FROM unnest('{0,1,2,3}'::int[]) p(n), LATERAL (SELECT FROM job j WHERE j.queue = p_queue.id
            AND j.state = 'ready' AND j.priority = p.n AND j.at >= v_floors[p.n + 1] LIMIT p_queue.max_waiting) j)
        UNION ALL (SELECT FROM job j WHERE j.queue = p_queue.id AND j.state = 'held' AND j.held_by IS NOT NULL
            LIMIT p_queue.max_waiting)
        UNION ALL (SELECT FROM job j WHERE j.queue = p_queue.id AND j.state = 'waiting' AND j.held_by IS NULL
            LIMIT p_queue.max_waiting)) w);
END $$;

-- Refuses a job if too many wait. Only one transaction at a time pushes into a queue with such a bound.
CREATE FUNCTION check_room(p_queue queue, p_now bigint, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE v_waiting bigint;
BEGIN
    told := '{}';
    IF p_queue.max_waiting IS NULL THEN RETURN; END IF;
    PERFORM check_isolation('a push into a queue with `max_waiting`');
    PERFORM pg_advisory_xact_lock(lock_of('room', p_queue.id));
    IF pg_sequence_last_value(p_queue.waiting) < p_queue.max_waiting THEN RETURN; END IF;
    v_waiting := waiting_of(p_queue, p_now);
    IF v_waiting >= p_queue.max_waiting THEN
        -- One piece: the ticks end the others. It counts again, since not all that have expired may end.
        told := (end_due(p_queue, false, 0, clock_timestamp() + interval '50 ms', p_now)).told;
        v_waiting := CASE WHEN cardinality(told) > 0 THEN waiting_of(p_queue, p_now) ELSE v_waiting END;
    END IF;
    PERFORM setval(p_queue.waiting, v_waiting);
    IF v_waiting >= p_queue.max_waiting THEN
        RAISE 'waterline: the queue "%" is full: at most % of its jobs may wait', p_queue.name, p_queue.max_waiting
            USING ERRCODE = 'WQ005', DETAIL = p_queue.max_waiting::text;
    END IF;
END $$;

-- The job of a push, as its settings say.
CREATE FUNCTION new_job(p_queue int, p_kind text, p_payload text, p_settings jsonb, p_now bigint) RETURNS job LANGUAGE plpgsql AS $$
DECLARE
    v_new job;
    v_unique jsonb := nullif(p_settings->'unique', 'null');
BEGIN
    v_new.number := nextval('place');
    v_new.queue := p_queue;
    v_new.priority := coalesce((p_settings->>'priority')::int, 2);
    v_new.place := v_new.number;
    v_new.kind := p_kind;
    v_new.payload := p_payload;
    v_new.name := p_settings->>'id';
    v_new.key := p_settings->>'key';
    v_new.failures := 0;
    v_new.crashes := 0;
    v_new.pushed := coalesce((p_settings->>'pushed')::bigint, p_now);
    v_new.due := coalesce(bounded((p_settings->>'run_at')::bigint), p_now + bounded((p_settings->>'delay_ms')::bigint), 0);
    -- The time of a tick was not named by the user.
    v_new.named := p_settings ? 'run_at' AND NOT p_settings ? 'pushed';
    v_new.since := p_now;
    v_new.meta := p_settings->>'meta';
    v_new.retry := nullif(p_settings->'retry', 'null');
    v_new.retention := (p_settings->>'retention_ms')::bigint;
    v_new.fingerprint := coalesce(v_unique->>'fingerprint', p_settings->>'skip');
    v_new.uniq := CASE WHEN v_unique->>'until' IS DISTINCT FROM 'within' THEN v_unique->>'fingerprint' END;
    v_new.uniq_until := CASE v_unique->>'until' WHEN 'within' THEN 'w' WHEN 'done' THEN 'd' WHEN 'claimed' THEN 'c' END;
    v_new.skips_from := CASE WHEN p_settings->>'skip' IS NOT NULL THEN 0 END;
    v_new.root := p_settings->'root'->>'signature';
    v_new.root_at := (p_settings->'root'->>'at')::bigint;
    v_new.is_root := v_new.root IS NOT NULL AND NOT coalesce((p_settings->'root'->>'leaf')::boolean, false);
    v_new.expires := p_now + bounded((p_settings->>'expires_ms')::bigint);
    v_new.cost := coalesce((p_settings->>'cost')::int, 1);
    v_new.on_dead := coalesce(p_settings->>'on_dead', 'die');
    v_new.counted := false;
    v_new.silent := false;
    v_new.stopping := false;
    v_new.suspect := false;
    RETURN v_new;
END $$;

-- The jobs that this one waits for.
CREATE FUNCTION awaited_by(p_number bigint) RETURNS bigint[] LANGUAGE sql AS
$$ SELECT coalesce(array_agg(awaited ORDER BY awaited), '{}') FROM edge WHERE job = p_number $$;

-- The id of the job that is unique by this fingerprint now, or was within its time; null: there is none.
CREATE FUNCTION twin_of(p_queue int, p_fingerprint text, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE v_twin text;
BEGIN
    SELECT m.job INTO v_twin FROM mark m WHERE m.queue = p_queue AND m.fingerprint = p_fingerprint AND m.until > p_now;
    IF v_twin IS NULL THEN
        SELECT id_of(j.name, j.number) INTO v_twin FROM job j WHERE j.queue = p_queue AND j.uniq = p_fingerprint;
    END IF;
    RETURN v_twin;
END $$;

-- Pushes one job. Its outcome is added, duplicate, rescheduled or resubmit.
CREATE FUNCTION push_one(p_queue queue, p_kind text, p_payload text, p_settings jsonb, p_after text[], p_bounded boolean,
    p_now bigint, OUT id text, OUT outcome text, OUT state text, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE
    v_pushed job;
    v_new job;
    v_old job;
    v_unique jsonb := nullif(p_settings->'unique', 'null');
    v_clash text := coalesce(v_unique->>'clash', 'keep');
    v_within bigint := CASE WHEN v_unique->>'until' = 'within' THEN bounded((v_unique->>'within_ms')::bigint) END;
    v_twin text;
    v_awaited bigint[];
    v_died text;
    v_moves boolean;
BEGIN
    PERFORM check_job(p_kind, p_payload, p_queue.max_payload);
    IF p_settings <> '{}' THEN PERFORM check_settings(p_settings); END IF;
    IF cardinality(p_after) > 0 THEN PERFORM check_isolation('a push of a job that waits for others'); END IF;
    told := '{}';
    PERFORM note_time(p_queue.seen, p_now);
    v_pushed := new_job(p_queue.id, p_kind, p_payload, p_settings, p_now);
    FOR v_round IN 1 .. 100 LOOP
        v_new := v_pushed;
        id := id_of(v_new.name, v_new.number);
        v_old := NULL;
        v_twin := NULL;
        IF v_new.name IS NOT NULL THEN
            SELECT * INTO v_old FROM job j WHERE j.queue = p_queue.id AND j.name = v_new.name FOR UPDATE;
        END IF;
        IF cardinality(p_after) > 0 THEN
            SELECT a.awaited, a.died INTO v_awaited, v_died
            FROM awaited_of(p_queue, id, coalesce(v_old.number, ended_of(p_queue.id, id)), p_after, v_new.on_dead, p_now) a;
        ELSE
            v_awaited := '{}';
            v_died := NULL;
            IF v_old.state = 'waiting' THEN
                -- It goes on waiting for those that it has waited for.
                v_awaited := awaited_by(v_old.number);
                v_new.on_dead := v_old.on_dead;
            END IF;
        END IF;
        IF v_unique IS NOT NULL THEN v_twin := twin_of(p_queue.id, v_new.fingerprint, p_now); END IF;
        v_moves := false;
        outcome := 'added';
        IF v_twin IS NOT NULL THEN
            id := v_twin;
            IF v_clash = 'keep' THEN
                -- Nothing is written, so nothing is locked: the end of the twin waits for no push.
                outcome := 'duplicate';
                RETURN;
            END IF;
            SELECT * INTO v_old FROM job j WHERE j.number = number_of(p_queue.id, v_twin) FOR UPDATE;
            -- It has ended since that query: then it is no longer a twin, unless it is one for a time.
            CONTINUE WHEN v_old.number IS NULL AND twin_of(p_queue.id, v_new.fingerprint, p_now) IS DISTINCT FROM v_twin;
            IF v_clash = 'replace' AND v_old.state IN ('ready', 'held', 'waiting') THEN
                v_moves := true;
                IF cardinality(p_after) > 0 THEN
                    SELECT a.awaited, a.died INTO v_awaited, v_died
                    FROM awaited_of(p_queue, id, v_old.number, p_after, v_new.on_dead, p_now) a;
                ELSIF v_old.state = 'waiting' THEN
                    v_awaited := awaited_by(v_old.number);
                    v_new.on_dead := v_old.on_dead;
                END IF;
                v_new.name := v_old.name;
            ELSIF v_clash = 'earliest' AND v_old.state IN ('ready', 'held') AND v_old.at > p_now AND v_new.due < v_old.due THEN
                UPDATE job j SET due = v_new.due, named = v_new.named, at = greatest(v_new.due, p_now), since = p_now, place = nextval('place')
                WHERE j.number = v_old.number;
                outcome := 'rescheduled';
                state := CASE WHEN v_new.due <= p_now THEN 'ready' ELSE 'scheduled' END;
                RETURN;
            ELSE
                outcome := 'duplicate';
                RETURN;
            END IF;
        ELSIF v_old.state = 'running' THEN
            IF cardinality(v_awaited) > 0 OR v_died IS NOT NULL THEN
                RAISE 'waterline: the job "%" is running, so it cannot wait for others', id USING ERRCODE = 'WQ006', DETAIL = id;
            END IF;
            UPDATE job j SET resubmit = v_new.due, resubmitted = CASE WHEN NOT v_new.named THEN p_now END WHERE j.number = v_old.number;
            outcome := 'resubmit';
            RETURN;
        ELSIF v_old.number IS NOT NULL THEN
            IF v_old.due = v_new.due AND v_died IS NULL AND (cardinality(p_after) IS NULL OR cardinality(p_after) = 0 OR
                v_awaited = awaited_by(v_old.number)
                AND (cardinality(v_awaited) = 0 OR v_old.on_dead = v_new.on_dead)) THEN
                outcome := 'duplicate';
                RETURN;
            END IF;
            v_moves := true;
        END IF;
        IF v_moves THEN
            outcome := 'rescheduled';
            v_new := moved(v_old, v_new);
            IF v_old.noted IS NOT NULL THEN told := told || told(id, NULL, p_outcome => 'anew'); END IF;
        ELSIF p_bounded THEN
            told := told || check_room(p_queue, p_now);
        END IF;
        SELECT push_one.told || p.told, p.state, p.placed INTO told, state, v_moves
        FROM place_job(p_queue, v_new, v_old, v_awaited, v_died, v_within, p_now) p;
        IF v_moves THEN RETURN; END IF;
        -- The other one is committed by now, or it is gone: try again.
    END LOOP;
    RAISE 'waterline: the job "%" changes too fast', id USING ERRCODE = '40001';
END $$;

-- The common case: jobs without settings, in one statement. It returns their numbers in their order, or null, if only
-- `push_jobs` can say whether there is room for them. It waits for no lock.
CREATE FUNCTION push_plain(p_queue text, p_kinds text[], p_payloads text[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_queue int;
    v_bell regclass;
    v_seen regclass;
    v_most bigint;
    v_bytes int;
    v_now bigint := clock();
    v_numbers bigint[];
BEGIN
    SELECT id, bell, seen, max_waiting, max_payload INTO v_queue, v_bell, v_seen, v_most, v_bytes FROM queue WHERE name = p_queue;
    IF v_queue IS NULL THEN PERFORM queue_of(p_queue); END IF;
    IF v_most IS NOT NULL THEN RETURN NULL; END IF;
    IF cardinality(p_kinds) = 1 THEN
        IF (octet_length(p_payloads[1]) <= v_bytes AND octet_length(p_kinds[1]) BETWEEN 1 AND 255) IS NOT TRUE THEN
            PERFORM check_job(p_kinds[1], p_payloads[1], v_bytes);
        END IF;
        v_numbers := ARRAY[nextval('place')];
        INSERT INTO job (number, queue, state, at, place, kind, payload, pushed, since)
        VALUES (v_numbers[1], v_queue, 'ready', v_now, v_numbers[1], p_kinds[1], p_payloads[1], v_now, v_now);
    ELSE
        IF cardinality(p_kinds) <> cardinality(p_payloads) OR array_position(p_kinds, NULL) IS NOT NULL
            OR array_position(p_payloads, NULL) IS NOT NULL
            OR (SELECT bool_or(octet_length(u.kind) NOT BETWEEN 1 AND 255) FROM (SELECT unnest(p_kinds) AS kind) u)
            -- All of them together rarely have this many bytes.
            OR pg_column_size(p_payloads) > v_bytes THEN
            PERFORM check_job(u.kind, u.payload, v_bytes) FROM (SELECT unnest(p_kinds) AS kind, unnest(p_payloads) AS payload) u;
        END IF;
        -- Functions that return sets cost less in the list of a SELECT than after FROM, where each row is copied.
        v_numbers := ARRAY(SELECT nextval('place') FROM (SELECT generate_series(1, cardinality(p_kinds))) n);
        INSERT INTO job (number, queue, state, at, place, kind, payload, pushed, since)
        SELECT u.number, v_queue, 'ready', v_now, u.number, u.kind, u.payload, v_now, v_now
        FROM (SELECT unnest(v_numbers) AS number, unnest(p_kinds) AS kind, unnest(p_payloads) AS payload) u;
    END IF;
    IF pg_sequence_last_value(v_bell) <> 0 THEN PERFORM ring(v_queue, v_bell); END IF;
    IF pg_sequence_last_value(v_seen) < v_now - 1000 THEN PERFORM setval(v_seen, v_now); END IF;
    RETURN v_numbers;
END $$;

-- Waits for the jobs that these pushes move or flag, as long as they are locked. So no push waits for one of them
-- while it has the lock of a queue with a bound, for which all others wait.
CREATE FUNCTION await_named(p_queue text, p_settings text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_queue int := (queue_of(p_queue)).id;
    v_names text[];
    v_twins text[];
BEGIN
    SELECT array_agg(s.o->>'id'), array_agg(s.o->'unique'->>'fingerprint') FILTER (WHERE s.o->'unique'->>'clash' <> 'keep')
    INTO v_names, v_twins FROM (SELECT u.s::jsonb AS o FROM unnest(p_settings) u(s) WHERE u.s IS NOT NULL) s;
    PERFORM FROM job j WHERE j.number = ANY (ARRAY(SELECT number FROM job WHERE queue = v_queue AND name = ANY (v_names))
        || ARRAY(SELECT number FROM job WHERE queue = v_queue AND uniq = ANY (v_twins))) ORDER BY j.number FOR UPDATE;
END $$;

-- Pushes jobs, all or none. With `p_batch`, the last one waits for all others. Answers a row `pushed` for each, in
-- order.
CREATE FUNCTION push_jobs(p_queue text, p_kinds text[], p_payloads text[], p_settings text[], p_batch boolean, OUT answers answer[])
LANGUAGE plpgsql AS $$
DECLARE
    v_queue queue := queue_of(p_queue);
    v_now bigint := clock();
    v_due boolean := false;
    v_settings jsonb;
    v_after text[];
    v_ids text[] := '{}';
    v_numbers bigint[];
    v_pushed record;
    v_told answer[] := '{}';
    v_one answer;
BEGIN
    answers := '{}';
    IF cardinality(p_settings) <> cardinality(p_kinds) OR cardinality(p_payloads) <> cardinality(p_kinds) THEN
        PERFORM refuse('the kinds, the payloads and the settings of a call have the same length');
    END IF;
    IF coalesce(cardinality(array_remove(p_settings, NULL)), 0) = 0 AND v_queue.max_waiting IS NULL AND NOT p_batch THEN
        v_numbers := push_plain(p_queue, p_kinds, p_payloads);
        IF v_numbers IS NOT NULL THEN
            SELECT array_agg(pushed_answer('~' || n, 'added', 'ready') ORDER BY n) INTO answers FROM unnest(v_numbers) n;
            RETURN;
        END IF;
    END IF;
    IF v_queue.max_waiting IS NOT NULL AND cardinality(p_kinds) > 1 THEN PERFORM await_named(p_queue, p_settings); END IF;
    FOR v_at IN 1 .. coalesce(cardinality(p_kinds), 0) LOOP
        v_settings := coalesce(nullif(p_settings[v_at]::jsonb, 'null'), '{}');
        SELECT coalesce(array_agg(a), '{}') INTO v_after FROM jsonb_array_elements_text(nullif(v_settings->'after', 'null')) a;
        IF p_batch AND v_at = cardinality(p_kinds) THEN v_after := v_after || v_ids; END IF;
        SELECT * INTO v_pushed
        FROM push_one(v_queue, p_kinds[v_at], p_payloads[v_at], v_settings, v_after, true, v_now);
        v_ids := v_ids || v_pushed.id;
        v_due := v_due OR v_pushed.state = 'ready';
        -- A single element in a statement of its own is appended in place; otherwise the list is copied each time.
        answers := answers || pushed_answer(v_pushed.id, v_pushed.outcome, v_pushed.state);
        FOREACH v_one IN ARRAY v_pushed.told LOOP v_told := v_told || v_one; END LOOP;
    END LOOP;
    IF cardinality(v_told) > 0 THEN answers := answers || ARRAY(SELECT f FROM few(v_told) f); END IF;
    IF v_due THEN PERFORM ring(v_queue.id, v_queue.bell); END IF;
END $$;

-- Pushes jobs into several queues, all or none: `p_counts` of them into each. After the answers of each queue
-- is the word `next`. An error has the name of its queue in the place of a table's.
CREATE FUNCTION push_across(p_queues text[], p_counts int[], p_kinds text[], p_payloads text[], p_settings text[], p_batches boolean[],
    OUT answers answer[]) LANGUAGE plpgsql AS $$
DECLARE v_to int := 0; v_code text; v_text text; v_detail text; v_hint text;
BEGIN
    answers := '{}';
    IF 0 > ANY (p_counts) OR cardinality(p_counts) IS DISTINCT FROM cardinality(p_queues)
        OR (SELECT count(*) FILTER (WHERE c IS NULL) > 0 OR coalesce(sum(c), 0) <> cardinality(p_kinds) FROM unnest(p_counts) c) THEN
        PERFORM refuse('each queue has a count, and all counts together are the jobs');
    END IF;
    FOR v_at IN 1 .. cardinality(p_queues) LOOP
        v_to := v_to + p_counts[v_at];
        PERFORM await_named(p_queues[v_at], p_settings[v_to - p_counts[v_at] + 1:v_to]);
    END LOOP;
    v_to := 0;
    FOR v_at IN 1 .. cardinality(p_queues) LOOP
        v_to := v_to + p_counts[v_at];
        BEGIN
            answers := answers || push_jobs(p_queues[v_at], p_kinds[v_to - p_counts[v_at] + 1:v_to], p_payloads[v_to - p_counts[v_at] + 1:v_to],
                p_settings[v_to - p_counts[v_at] + 1:v_to], p_batches[v_at]) || word('next');
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS v_code = RETURNED_SQLSTATE, v_text = MESSAGE_TEXT, v_detail = PG_EXCEPTION_DETAIL, v_hint = PG_EXCEPTION_HINT;
            RAISE USING ERRCODE = v_code, MESSAGE = left(v_text, 1000), DETAIL = left(v_detail, 1000), HINT = v_hint, TABLE = left(p_queues[v_at], 255);
        END;
    END LOOP;
END $$;

CREATE FUNCTION pushed_answer(p_id text, p_outcome text, p_state text) RETURNS answer LANGUAGE sql AS
$$ SELECT ROW('pushed', NULL, p_id, p_outcome, p_state, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL)::answer $$;

-- For every language: pushes a job, in a transaction of its own or in the caller's.
CREATE FUNCTION push(p_queue text, p_kind text, p_payload text, p_settings jsonb DEFAULT NULL, OUT id text, OUT outcome text)
LANGUAGE plpgsql AS $$
DECLARE v_numbers bigint[];
BEGIN
    IF p_settings IS NULL THEN
        v_numbers := push_plain(p_queue, ARRAY[p_kind], ARRAY[p_payload]);
        IF v_numbers IS NOT NULL THEN
            id := '~' || v_numbers[1];
            outcome := 'added';
            RETURN;
        END IF;
    END IF;
    SELECT a.id, a.outcome INTO id, outcome
    FROM unnest(push_jobs(p_queue, ARRAY[p_kind], ARRAY[p_payload], ARRAY[p_settings::text], false)) a
    WHERE a.what = 'pushed';
END $$;

-- The same for many jobs. `p_settings` has an object for each, or null.
CREATE FUNCTION push_many(p_queue text, p_kinds text[], p_payloads text[], p_settings jsonb[] DEFAULT NULL)
RETURNS TABLE (id text, outcome text) LANGUAGE plpgsql AS $$
DECLARE v_numbers bigint[];
BEGIN
    IF p_settings IS NULL THEN
        v_numbers := push_plain(p_queue, p_kinds, p_payloads);
        IF v_numbers IS NOT NULL THEN
            RETURN QUERY SELECT '~' || n, 'added' FROM unnest(v_numbers) n;
            RETURN;
        END IF;
    END IF;
    RETURN QUERY SELECT a.id, a.outcome
        FROM unnest(push_jobs(p_queue, p_kinds, p_payloads, p_settings::text[], false)) a WHERE a.what = 'pushed';
END $$;
