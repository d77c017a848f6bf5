-- Calls of operators and of workers for single jobs, and the settings of a queue.

-- Makes a queue, if there is none of this name, and returns its number. `p_options` are those of `set_options`.
CREATE FUNCTION create_queue(p_name text, p_options jsonb DEFAULT NULL) RETURNS int LANGUAGE plpgsql AS $$
DECLARE v_queue int; v_register text; v_registers regclass[] := '{}'; v_sequence text;
BEGIN
    SELECT id INTO v_queue FROM queue WHERE name = p_name;
    IF NOT FOUND THEN
        INSERT INTO queue (name) VALUES (p_name) ON CONFLICT (name) DO NOTHING RETURNING id INTO v_queue;
        IF v_queue IS NULL THEN
            SELECT id INTO v_queue FROM queue WHERE name = p_name;
        ELSE
            FOREACH v_register IN ARRAY ARRAY['bell', 'ticked', 'turns', 'floor0', 'floor1', 'floor2', 'floor3',
                'head', 'head_place', 'dear', 'dear_ends', 'dear_tick', 'lines', 'suspects', 'seen', 'waiting'] LOOP
                v_sequence := format('%I.%I', current_schema(), 'q' || v_queue || '_' || v_register);
                EXECUTE 'CREATE SEQUENCE ' || v_sequence || ' MINVALUE -9223372036854775807 START 0';
                PERFORM setval(v_sequence::regclass, 0);
                v_registers := v_registers || v_sequence::regclass;
            END LOOP;
            UPDATE queue SET bell = v_registers[1], ticked = v_registers[2], turns = v_registers[3],
                floors = v_registers[4:14], seen = v_registers[15], waiting = v_registers[16] WHERE id = v_queue;
        END IF;
    END IF;
    IF p_options IS NOT NULL THEN PERFORM set_options(p_name, p_options); END IF;
    RETURN v_queue;
END $$;

-- Changes the settings of a queue: lease_ms, retry, max_crashes (null: any number), retention_ms (0: not at all, -1:
-- for ever), dead_for_ms, ids_for_ms, heal_after_ms, max_waiting, max_payload, and limits: a list of {of: queue |
-- each_key | kind | key, name, at_once, rate: {count, per_ns, burst}}. A missing member stays as it is. The last
-- change wins, so that programs of two versions may run at once.
CREATE FUNCTION set_options(p_name text, p_options jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_queue queue := queue_of(p_name);
    -- Bells for what is not committed now: the last one is for a transaction that stays open for an hour.
    c_delays CONSTANT int[] := '{1000,60000,600000,3600000}';
    v_old limits[];
BEGIN
    IF v_queue.options = p_options THEN RETURN; END IF;
    PERFORM check_options(p_options);
    UPDATE queue SET options = p_options,
        lease = coalesce(bounded((p_options->>'lease_ms')::bigint), lease),
        retry = coalesce(nullif(p_options->'retry', 'null'), retry),
        max_crashes = CASE WHEN p_options ? 'max_crashes' THEN (p_options->>'max_crashes')::int ELSE max_crashes END,
        retention = coalesce((p_options->>'retention_ms')::bigint, retention),
        dead_for = coalesce((p_options->>'dead_for_ms')::bigint, dead_for),
        ids_for = coalesce(bounded((p_options->>'ids_for_ms')::bigint), ids_for),
        heal_after = CASE WHEN p_options ? 'heal_after_ms' THEN (p_options->>'heal_after_ms')::bigint ELSE heal_after END,
        max_waiting = CASE WHEN p_options ? 'max_waiting' THEN (p_options->>'max_waiting')::bigint ELSE max_waiting END,
        max_payload = coalesce((p_options->>'max_payload')::int, max_payload),
        -- Without limits, it stays so until ticks have made all held jobs ready.
        limited = limited OR coalesce(jsonb_array_length(p_options->'limits') > 0, false)
    WHERE id = v_queue.id;
    -- The next push counts.
    PERFORM setval(v_queue.waiting, 1::bigint << 62) WHERE p_options->>'max_waiting' IS NOT NULL;
    IF NOT p_options ? 'limits' THEN RETURN; END IF;
    -- No claim runs meanwhile: each one goes by the old limits, or by the new ones.
    PERFORM pg_advisory_xact_lock(lock_of('claim', v_queue.id));
    v_old := ARRAY(SELECT l FROM limits l WHERE l.queue = v_queue.id);
    DELETE FROM limits WHERE queue = v_queue.id;
    INSERT INTO limits (queue, name, at_once, rate_count, rate_per, rate_burst)
    SELECT v_queue.id, CASE l->>'of' WHEN 'queue' THEN 'q' WHEN 'each_key' THEN 'e' WHEN 'kind' THEN 't' || (l->>'name')
        WHEN 'key' THEN 'k' || (l->>'name') END, (l->>'at_once')::int, (l->'rate'->>'count')::int,
        (l->'rate'->>'per_ns')::numeric, coalesce((l->'rate'->>'burst')::int, (l->'rate'->>'count')::int)
    FROM jsonb_array_elements(p_options->'limits') l;
    UPDATE queue SET limit_sorts = coalesce((SELECT string_agg(DISTINCT left(l.name, 1), '')
            || CASE WHEN bool_or(l.name = 'e' AND l.at_once IS NOT NULL) THEN 'a' ELSE '' END
            || CASE WHEN bool_or(l.name LIKE 't%' AND l.at_once IS NOT NULL) THEN 'c' ELSE '' END
            || CASE WHEN bool_or(l.rate_count IS NOT NULL) THEN 'r' ELSE '' END
        FROM limits l WHERE l.queue = v_queue.id), '') WHERE id = v_queue.id;
    -- Held jobs are checked again, in their old places. Those after the first piece, and those that are locked, are
    -- checked when the bell `h` rings, or by ticks, if there are no limits any more.
    IF jsonb_array_length(p_options->'limits') > 0 THEN PERFORM release_held(v_queue);
    ELSE PERFORM end_limits(v_queue, clock_timestamp());
    END IF;
    INSERT INTO freed (queue, at, name) SELECT v_queue.id, clock() + d.delay, 'h' FROM unnest(0 || c_delays) d(delay)
    WHERE jsonb_array_length(p_options->'limits') > 0
        AND first_held(v_queue.id) IS NOT NULL;
    -- A job that is counted needlessly does no harm. This call waits for no turn that has ended a job and waits for
    -- the lock of claims: a job that is locked is counted when the bell `c` rings.
    IF EXISTS (SELECT FROM limits l WHERE l.queue = v_queue.id AND l.name LIKE 't%' AND l.at_once IS NOT NULL) THEN
        FOR v_piece IN 1 .. 16 LOOP
            EXIT WHEN NOT count_running(v_queue.id);
        END LOOP;
        INSERT INTO freed (queue, at, name) SELECT v_queue.id, clock() + d.delay, 'c' FROM unnest(c_delays) d(delay)
        WHERE EXISTS (SELECT FROM job WHERE queue = v_queue.id AND state = 'running' AND NOT counted);
    END IF;
    IF jsonb_array_length(p_options->'limits') > 0 THEN
        -- A call that began before this commit ends these jobs by the old options, and rings at no limit that bounds
        -- them only now. A claim that did has jobs that are not counted: the bell `c` is for them.
        INSERT INTO freed (queue, at, name) SELECT v_queue.id, clock() + d.delay, n.name
        FROM unnest(c_delays) d(delay), (
            SELECT r.name FROM (
                SELECT 't' || j.kind FROM job j WHERE j.queue = v_queue.id AND j.state = 'running'
                UNION SELECT 'k' || j.key FROM job j WHERE j.queue = v_queue.id AND j.state = 'running' AND j.key IS NOT NULL) r(name)
            WHERE (bounds_of(v_queue.id, r.name)).at_once IS NOT NULL AND (SELECT o.at_once FROM unnest(v_old) o
                WHERE o.name = r.name OR o.name = 'e' AND r.name LIKE 'k%' ORDER BY o.name = 'e' LIMIT 1) IS NULL
            UNION ALL SELECT 'c' WHERE NOT v_queue.limited
                AND EXISTS (SELECT FROM job j WHERE j.queue = v_queue.id AND j.state = 'ready')) n(name);
    END IF;
END $$;

-- Changes a job: with a token only if its worker still has it. `p_what` is nothing, data, meta (the key in `p_key`;
-- null removes it), resubmit (at `p_at`) or progress (`p_fraction`, and a note in `p_value`). The answer is a row
-- `told`, and `job` as the job is then.
CREATE FUNCTION edit(p_queue text, p_id text, p_number bigint DEFAULT NULL, p_token bigint DEFAULT NULL, p_what text DEFAULT 'nothing',
    p_key text DEFAULT NULL, p_value text DEFAULT NULL, p_at bigint DEFAULT NULL, p_fraction float8 DEFAULT NULL) RETURNS SETOF answer LANGUAGE plpgsql AS $$
DECLARE v_queue queue := queue_of(p_queue); v_number bigint := p_number; v_job job; v_now bigint := clock(); v_meta jsonb; v_old text;
    v_died boolean;
BEGIN
    IF p_token IS NOT NULL THEN
        SELECT * INTO v_job FROM job WHERE number = v_number AND token = p_token FOR UPDATE;
        IF NOT FOUND THEN RAISE 'waterline: the lease of the job "%" is over', p_id USING ERRCODE = 'WQ007', DETAIL = p_id; END IF;
    ELSE
        v_number := number_of(v_queue.id, p_id);
        SELECT * INTO v_job FROM job WHERE number = v_number FOR UPDATE;
        IF NOT FOUND THEN
            v_number := ended_of(v_queue.id, p_id);
            SELECT died, meta INTO v_died, v_old FROM ended WHERE number = v_number FOR UPDATE;
            IF NOT FOUND THEN RAISE 'waterline: there is no job "%"', p_id USING ERRCODE = 'WQ004', DETAIL = p_id; END IF;
        END IF;
    END IF;
    CASE p_what
    WHEN 'nothing' THEN NULL;
    WHEN 'data' THEN
        PERFORM check_size('the data of a job', p_value, v_queue.max_payload);
        IF v_job.number IS NULL THEN UPDATE ended SET data = p_value WHERE number = v_number;
        ELSE UPDATE job SET data = p_value WHERE number = v_number;
        END IF;
        -- The caller knows the data.
        RETURN NEXT told(p_id, CASE WHEN v_job.number IS NULL THEN CASE WHEN v_died THEN 'dead' ELSE 'finished' END
            ELSE shown(v_job.state, v_job.at, v_now) END);
    WHEN 'meta' THEN
        v_old := set_member(CASE WHEN v_job.number IS NULL THEN v_old ELSE v_job.meta END, p_key, p_value);
        IF octet_length(v_old) > 65536 THEN
            RAISE 'waterline: the metadata of the job "%" would have more than 64 kB', p_id
                USING ERRCODE = 'WQ008', DETAIL = octet_length(v_old)::text;
        END IF;
        IF v_job.number IS NULL THEN UPDATE ended SET meta = v_old WHERE number = v_number;
        ELSE UPDATE job SET meta = v_old WHERE number = v_number;
        END IF;
    WHEN 'resubmit' THEN
        UPDATE job SET resubmit = p_at, resubmitted = NULL WHERE number = v_number RETURNING * INTO v_job;
    WHEN 'progress' THEN
        UPDATE job SET fraction = p_fraction, note = p_value, noted = v_now WHERE number = v_number;
    ELSE PERFORM refuse(format('a job is changed by data, meta, progress, resubmit or nothing, and not %s', p_what));
    END CASE;
    RETURN QUERY SELECT 'job', v_number, p_id, NULL::text, NULL::text, NULL::bigint, NULL::text, NULL::text, NULL::text,
        NULL::text, NULL::int, NULL::int, NULL::bigint, v_job.resubmit, v_now, NULL::int, NULL::text;
END $$;

-- An object as text with another member, its members in order. `json` keeps the text of each value.
CREATE FUNCTION set_member(p_object text, p_key text, p_value text) RETURNS text LANGUAGE sql AS
$$ SELECT nullif('{' || coalesce(string_agg(to_json(m.key)::text || ':' || m.value, ',' ORDER BY m.key COLLATE "C"), '') || '}', '{}')
    FROM (SELECT e.key, e.value::text FROM json_each(coalesce(p_object, '{}')::json) e WHERE e.key <> p_key
        UNION ALL SELECT p_key, p_value WHERE p_value IS NOT NULL) m $$;

-- Renews leases from now on for `p_lease` milliseconds (null: as the queue says). The answer has those that are still
-- the caller's: the work on a missing job is to be stopped. `p_silent`: the end of the lease is a failure of a silent
-- worker, and no crash. `p_stops`: the worker stops, and gives them up. A job that an open transaction has locked
-- counts as the caller's, since no other call takes it back before that transaction ends: its lease goes on from the
-- next renewal. Only `p_silent` and `p_stops` are said once, so they wait for it, for a second at most. `p_about`:
-- notes the caller as a worker (`note_workers`).
CREATE FUNCTION renew(p_jobs bigint[], p_tokens bigint[], p_lease bigint DEFAULT NULL, p_silent boolean DEFAULT NULL,
    p_stops boolean DEFAULT NULL, p_about text DEFAULT NULL) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE v_patience text := current_setting('lock_timeout');
BEGIN
    IF cardinality(p_jobs) > 256 THEN PERFORM refuse_count(p_jobs); END IF;
    IF p_about IS NOT NULL THEN PERFORM note_workers(p_about); END IF;
    IF p_silent OR p_stops THEN
        BEGIN
            -- A claim that has seen the job ready locks it until its commit, though it does not get it.
            PERFORM set_config('lock_timeout', '1000', true);
            PERFORM FROM job WHERE number = ANY (p_jobs) ORDER BY number FOR NO KEY UPDATE;
            PERFORM set_config('lock_timeout', v_patience, true);
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN NULL;
        END;
    END IF;
    RETURN renew_all(p_jobs, p_tokens, p_lease, p_silent, p_stops);
END $$;

CREATE FUNCTION renew_all(p_jobs bigint[], p_tokens bigint[], p_lease bigint, p_silent boolean DEFAULT NULL,
    p_stops boolean DEFAULT NULL) RETURNS bigint[] LANGUAGE sql AS
$$ WITH free AS (
    SELECT f.number FROM unnest(p_jobs, p_tokens) u(number, token), LATERAL (
        SELECT j.number FROM job j WHERE j.number = u.number AND j.token = u.token FOR NO KEY UPDATE SKIP LOCKED) f
    ), renewed AS (
    UPDATE job j SET at = clock() + coalesce(p_lease, q.lease), renewed = clock(), silent = coalesce(p_silent, j.silent),
        stopping = coalesce(p_stops, j.stopping)
    FROM queue q WHERE j.number = ANY (ARRAY(SELECT number FROM free)) AND q.id = j.queue RETURNING j.number)
    SELECT coalesce(array_agg(h.number), '{}') FROM unnest(p_jobs, p_tokens) u(number, token), LATERAL (
        SELECT j.number FROM job j WHERE j.number = u.number AND j.token = u.token LIMIT 1) h $$;

-- Notes that the runner of these jobs stops: if its process ends now, that is no crash.
CREATE FUNCTION note_stop(p_jobs bigint[], p_tokens bigint[], p_about text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_about IS NOT NULL THEN PERFORM note_workers(p_about); END IF;
    UPDATE job j SET stopping = true FROM unnest(p_jobs, p_tokens) u(number, token)
    WHERE j.number = u.number AND j.token = u.token;
END $$;

-- Removes a job in any state. Its worker learns so at its next call. The caller rings at its limits.
CREATE FUNCTION remove_one(p_queue queue, p_number bigint, p_now bigint, OUT done boolean, OUT told answer[], OUT leaves leaving)
LANGUAGE plpgsql AS $$
DECLARE v_job job; v_ended ended; v_name text; v_fingerprint text;
BEGIN
    told := '{}';
    DELETE FROM job WHERE number = p_number RETURNING * INTO v_job;
    done := FOUND;
    IF done THEN
        leaves := left_by(p_queue, v_job);
        DELETE FROM edge WHERE job = p_number;
        v_name := v_job.name;
        v_fingerprint := v_job.fingerprint;
    ELSE
        DELETE FROM ended WHERE number = p_number RETURNING * INTO v_ended;
        done := FOUND;
        v_name := v_ended.name;
        v_fingerprint := v_ended.fingerprint;
        IF NOT done THEN
            DELETE FROM damaged WHERE number = p_number RETURNING id INTO v_name;
            done := FOUND;
            IF NOT done THEN RETURN; END IF;
            v_name := nullif(v_name, '~' || p_number);
        END IF;
    END IF;
    DELETE FROM mark WHERE queue = p_queue.id AND fingerprint = v_fingerprint AND job = id_of(v_name, p_number);
    PERFORM forget(p_queue, ARRAY[v_name], p_now);
    PERFORM ring_edges(p_queue.id, p_number, false);
    told := ARRAY[told(id_of(v_name, p_number), NULL)];
END $$;

-- Makes a scheduled job due now. All else stays.
CREATE FUNCTION run_now_one(p_queue queue, p_number bigint, p_now bigint, OUT done boolean, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE v_id text;
BEGIN
    told := '{}';
    UPDATE job SET due = 0, named = NULL, at = p_now, since = p_now, place = nextval('place')
    WHERE number = p_number AND state = 'ready' AND at > p_now RETURNING id_of(name, number) INTO v_id;
    done := FOUND;
    IF NOT done THEN RETURN; END IF;
    told := ARRAY[told(v_id, 'ready')];
    PERFORM ring(p_queue.id, p_queue.bell);
END $$;

-- Steers a queue: remove, requeue, run_now (with an id); purge (with a state), requeue_dead: some of the jobs; pause
-- (for this many milliseconds; null: without end; 0: no more), remove_periodic (with a name). Of the answers,
-- `steered` has the number of jobs that were changed.
CREATE FUNCTION steer(p_queue text, p_what text, p_id text DEFAULT NULL, p_for bigint DEFAULT NULL) RETURNS SETOF answer LANGUAGE plpgsql AS $$
DECLARE v_queue queue := queue_of(p_queue); v_now bigint := clock(); v_count bigint := 0; v_number bigint; v_numbers bigint[]; v_one record;
    v_told answer[] := '{}'; v_of_one answer; v_left leaving[] := '{}';
BEGIN
    IF p_id IS NULL AND p_what IN ('remove', 'requeue', 'run_now', 'remove_periodic') THEN
        PERFORM refuse(format('"%s" needs `p_id`: the id of a job, or the name of a schedule', p_what));
    ELSIF p_what = 'purge' AND coalesce(p_id, '') NOT IN ('scheduled', 'ready', 'running', 'waiting') THEN
        PERFORM refuse('"purge" needs a state: scheduled, ready, running or waiting; jobs that have ended are removed by their ids');
    ELSIF p_for < 0 THEN
        PERFORM refuse('a pause is 0 milliseconds (it ends) or more, or null: without end');
    END IF;
    CASE p_what
    WHEN 'remove', 'requeue', 'run_now' THEN
        v_number := any_of(v_queue.id, p_id);
        IF v_number IS NULL THEN RAISE 'waterline: there is no job "%"', p_id USING ERRCODE = 'WQ004', DETAIL = p_id; END IF;
        CASE p_what
        WHEN 'remove' THEN
            SELECT * INTO v_one FROM remove_one(v_queue, v_number, v_now);
            v_left := ARRAY[v_one.leaves];
        WHEN 'requeue' THEN SELECT * INTO v_one FROM requeue_one(v_queue, v_number, v_now);
        ELSE SELECT * INTO v_one FROM run_now_one(v_queue, v_number, v_now);
        END CASE;
        v_count := v_one.done::int;
        v_told := v_one.told;
    WHEN 'purge' THEN
        v_numbers := CASE p_id
            WHEN 'scheduled' THEN ARRAY(SELECT number FROM job WHERE queue = v_queue.id AND state = 'ready' AND at > v_now
                LIMIT 1024 FOR UPDATE SKIP LOCKED)
            WHEN 'ready' THEN ARRAY(SELECT number FROM job WHERE queue = v_queue.id AND state = 'ready' AND at <= v_now
                LIMIT 1024 FOR UPDATE SKIP LOCKED)
                || ARRAY(SELECT number FROM job WHERE queue = v_queue.id AND state = 'held' AND held_by IS NOT NULL LIMIT 1024 FOR UPDATE SKIP LOCKED)
            WHEN 'running' THEN ARRAY(SELECT number FROM job WHERE queue = v_queue.id AND state = 'running'
                LIMIT 1024 FOR UPDATE SKIP LOCKED)
            WHEN 'waiting' THEN ARRAY(SELECT number FROM job WHERE queue = v_queue.id AND state = 'waiting'
                LIMIT 1024 FOR UPDATE SKIP LOCKED)
            END;
        FOR v_number IN SELECT n FROM unnest(v_numbers) n ORDER BY n LOOP
            SELECT * INTO v_one FROM remove_one(v_queue, v_number, v_now);
            v_left := v_left || v_one.leaves;
            -- A single element in a statement of its own is appended in place; otherwise the list is copied.
            FOREACH v_of_one IN ARRAY v_one.told LOOP v_told := v_told || v_of_one; END LOOP;
            v_count := v_count + 1;
        END LOOP;
    WHEN 'requeue_dead' THEN
        SELECT * INTO v_one FROM requeue_some(v_queue, v_now);
        v_count := v_one.requeued;
        v_told := v_one.told;
    WHEN 'pause' THEN
        UPDATE queue SET paused_until = CASE WHEN p_for IS NULL THEN 9223372036854775807 WHEN p_for = 0 THEN 0 ELSE v_now + bounded(p_for) END,
            paused_since = CASE WHEN p_for = 0 THEN 0 ELSE v_now END
        WHERE id = v_queue.id RETURNING paused_until INTO v_number;
        v_told := ARRAY[paused_answer(v_number)];
        PERFORM note_time(v_queue.seen, v_now), ring(v_queue.id, v_queue.bell);
        v_count := 1;
    WHEN 'remove_periodic' THEN
        WITH gone AS (DELETE FROM periodic WHERE queue = v_queue.id AND name = p_id RETURNING name),
            damaged AS (DELETE FROM damaged WHERE queue = v_queue.id AND was = 'periodic' AND id = p_id RETURNING id)
        SELECT count(*) INTO v_count FROM (SELECT name FROM gone UNION SELECT id FROM damaged) n;
    ELSE
        RAISE 'waterline: there is no call "%"', p_what USING ERRCODE = 'WQ002';
    END CASE;
    PERFORM leave_behind(v_left, NULL, v_now);
    RETURN QUERY SELECT * FROM few(v_told || (resolve(v_queue, v_now)).told);
    RETURN QUERY SELECT 'steered', v_count, NULL::text, NULL::text, NULL::text, NULL::bigint, NULL::text, NULL::text, NULL::text,
        NULL::text, NULL::int, NULL::int, NULL::bigint, NULL::bigint, NULL::bigint, NULL::int, NULL::text;
END $$;

-- Changes a note: set (until `p_until`; 0: without end), add, keep (only its time) or remove. It returns the note
-- before and after.
-- A value that does not fit into the answer is null.
CREATE FUNCTION change_note(p_queue text, p_place text, p_what text, p_value text DEFAULT NULL, p_for bigint DEFAULT 0,
    OUT old_value text, OUT old_until bigint, OUT value text, OUT until bigint) LANGUAGE plpgsql AS $$
BEGIN
    SELECT c.* INTO old_value, old_until, value, until FROM put_note(p_queue, p_place, p_what, p_value, p_for) c;
    IF octet_length(value) + coalesce(octet_length(old_value), 0) > answer_room() THEN value := NULL; END IF;
    IF octet_length(old_value) > answer_room() THEN old_value := NULL; END IF;
END $$;

-- The same with any value, for `change_note_and_commit`.
CREATE FUNCTION put_note(p_queue text, p_place text, p_what text, p_value text, p_for bigint,
    OUT old_value text, OUT old_until bigint, OUT value text, OUT until bigint) LANGUAGE plpgsql AS $$
DECLARE v_queue queue := queue_of(p_queue); v_now bigint := clock(); v_old note; v_until bigint := CASE WHEN p_for > 0 THEN v_now + bounded(p_for) ELSE 0 END;
BEGIN
    PERFORM note_time(v_queue.seen, v_now);
    -- Two additions to a note that does not exist yet take turns, too.
    LOOP
        INSERT INTO note VALUES (v_queue.id, p_place, '', 1) ON CONFLICT (queue, place) DO NOTHING;
        SELECT * INTO v_old FROM note n WHERE n.queue = v_queue.id AND n.place = p_place FOR UPDATE;
        -- Otherwise another call has removed it between the two.
        EXIT WHEN FOUND;
    END LOOP;
    IF v_old.until > 0 AND v_old.until <= v_now THEN v_old := NULL; END IF;
    old_value := v_old.value;
    old_until := v_old.until;
    CASE p_what
    WHEN 'set' THEN value := p_value; until := v_until;
    WHEN 'keep' THEN value := old_value; until := v_until;
    WHEN 'add' THEN
        IF old_value !~ '^-?[0-9]+$' OR coalesce(p_value, '') !~ '^-?[0-9]+$' THEN
            RAISE 'waterline: the note there, or what is added, is no whole number of 64 bits: set it to one' USING ERRCODE = 'WQ009';
        END IF;
        value := (coalesce(old_value::numeric, 0) + p_value::numeric)::text;
        until := coalesce(old_until, 0);
        IF value::numeric NOT BETWEEN -9223372036854775808 AND 9223372036854775807 THEN
            RAISE 'waterline: % and % are more than 64 bits: set it to another number', old_value, p_value USING ERRCODE = 'WQ009';
        END IF;
    WHEN 'remove' THEN value := NULL;
    ELSE PERFORM refuse(format('a note is set, add, keep or remove, and not %s', p_what));
    END CASE;
    IF value IS NULL THEN DELETE FROM note n WHERE n.queue = v_queue.id AND n.place = p_place;
    ELSE UPDATE note n SET value = put_note.value, until = put_note.until,
            since = CASE WHEN p_what = 'add' THEN since ELSE v_now END WHERE n.queue = v_queue.id AND n.place = p_place;
    END IF;
END $$;

-- Registers a schedule. A new one has its first tick at once, unless `p_at_next`. With `p_every` this server makes
-- its jobs. Without it, `tick_once` does for the programs that have registered it, which compute the next tick.
CREATE FUNCTION register_periodic(p_queue text, p_name text, p_schedule text, p_every bigint, p_kind text, p_payload text,
    p_settings text DEFAULT NULL, p_at_next boolean DEFAULT false, p_next bigint DEFAULT NULL) RETURNS SETOF answer LANGUAGE plpgsql AS $$
DECLARE v_queue queue := queue_of(p_queue); v_now bigint := clock(); v_row periodic; v_pushed record;
BEGIN
    PERFORM note_time(v_queue.seen, v_now);
    -- A job that no push takes would hold up each tick.
    PERFORM check_settings(coalesce(nullif(p_settings::jsonb, 'null'), '{}'));
    IF p_every IS NOT NULL THEN PERFORM check_job(p_kind, p_payload, v_queue.max_payload); END IF;
    DELETE FROM damaged WHERE queue = v_queue.id AND was = 'periodic' AND id = p_name;
    INSERT INTO periodic (queue, name, last) VALUES (v_queue.id, p_name, v_now) ON CONFLICT (queue, name) DO NOTHING RETURNING * INTO v_row;
    UPDATE periodic SET schedule = p_schedule, next = p_next, every = bounded(p_every), kind = p_kind, payload = p_payload, settings = p_settings::jsonb
    WHERE queue = v_queue.id AND name = p_name;
    IF v_row.name IS NOT NULL AND NOT p_at_next THEN
        SELECT * INTO v_pushed FROM push_one(v_queue, p_kind, p_payload,
            coalesce(p_settings::jsonb, '{}') || jsonb_build_object('pushed', v_now, 'run_at', v_now), '{}', false, v_now);
        UPDATE periodic SET run = v_pushed.id WHERE queue = v_queue.id AND name = p_name;
        RETURN QUERY SELECT * FROM few(told(v_pushed.id, v_pushed.state) || v_pushed.told);
        PERFORM ring(v_queue.id, v_queue.bell);
    END IF;
    RETURN QUERY SELECT 'periodic', p.last, p.name, NULL::text, NULL::text, NULL::bigint, NULL::text, NULL::text, NULL::text,
        NULL::text, NULL::int, NULL::int, NULL::bigint, NULL::bigint, v_now, NULL::int, NULL::text
    FROM periodic p WHERE p.queue = v_queue.id AND p.name = p_name;
END $$;

-- Makes ticks of a schedule, if its last one is still `p_last`: then no other program has made them. `p_ticks` are
-- the times of the jobs, `p_new` is the last tick from now on. If the previous run has not ended and `p_overlaps` is
-- false, they are skipped. `ticked` has the last tick that there is then, and as its outcome made, skipped or other.
CREATE FUNCTION tick_once(p_queue text, p_name text, p_last bigint, p_new bigint, p_ticks bigint[], p_overlaps boolean,
    p_kind text, p_payload text, p_settings text, p_next bigint DEFAULT NULL) RETURNS SETOF answer LANGUAGE plpgsql AS $$
DECLARE v_queue queue := queue_of(p_queue); v_now bigint := clock(); v_row periodic; v_pushed record; v_tick bigint; v_outcome text := 'made'; v_told answer[] := '{}';
BEGIN
    SELECT * INTO v_row FROM periodic WHERE queue = v_queue.id AND name = p_name FOR UPDATE;
    IF v_row.last IS DISTINCT FROM p_last THEN
        v_outcome := 'other';
    ELSE
        IF NOT p_overlaps AND v_row.run IS NOT NULL AND number_of(v_queue.id, v_row.run) IS NOT NULL AND cardinality(p_ticks) > 0 THEN
            v_outcome := 'skipped';
        ELSE
            FOREACH v_tick IN ARRAY p_ticks LOOP
                SELECT * INTO v_pushed FROM push_one(v_queue, p_kind, p_payload,
                    coalesce(p_settings::jsonb, '{}') || jsonb_build_object('pushed', v_tick, 'run_at', v_tick), '{}', false, v_now);
                v_row.run := v_pushed.id;
                v_told := v_told || told(v_pushed.id, v_pushed.state) || v_pushed.told;
            END LOOP;
            RETURN QUERY SELECT * FROM few(v_told);
            IF cardinality(p_ticks) > 0 THEN PERFORM ring(v_queue.id, v_queue.bell); END IF;
        END IF;
        v_row.last := p_new;
        UPDATE periodic SET last = p_new, next = p_next, run = v_row.run, skipped = skipped + (v_outcome = 'skipped')::int
        WHERE queue = v_queue.id AND name = p_name;
    END IF;
    RETURN QUERY SELECT 'ticked', v_row.last, v_row.run, v_outcome, NULL::text, NULL::bigint, NULL::text, NULL::text, NULL::text,
        NULL::text, NULL::int, NULL::int, NULL::bigint, NULL::bigint, NULL::bigint, NULL::int, NULL::text;
END $$;

CREATE FUNCTION set_average(p_queue text, p_kind text, p_count bigint, p_mean bigint, p_last bigint) RETURNS void LANGUAGE sql AS
$$ INSERT INTO average AS a VALUES ((queue_of(p_queue)).id, p_kind, p_count, p_mean, p_last)
    ON CONFLICT (queue, kind) DO UPDATE SET count = excluded.count, mean = excluded.mean, last = excluded.last $$;
