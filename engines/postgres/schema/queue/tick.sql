-- All that has to happen in time. Any number of callers may tick: what another one does is skipped, so there is no
-- leader, and a queue goes on as long as any worker claims from it.

-- The table of docs/operating.md says how much one call does at most.

-- Ends these jobs, which no worker has taken by the time at which they expire. `more`: it has not done all.
CREATE FUNCTION expire_these(p_queue queue, p_numbers bigint[], p_until timestamptz, p_now bigint, OUT done int, OUT more boolean, OUT told answer[])
LANGUAGE plpgsql AS $$
DECLARE v_number bigint; v_job job; v_told answer;
BEGIN
    done := 0;
    more := false;
    told := '{}';
    FOREACH v_number IN ARRAY p_numbers LOOP
        -- One of them may have ended this one.
        SELECT * INTO v_job FROM job WHERE number = v_number AND state <> 'running' FOR UPDATE SKIP LOCKED;
        IF FOUND AND (v_job.state <> 'waiting' OR has_free_edges(v_number)) THEN
            FOREACH v_told IN ARRAY end_unrun(p_queue, v_job, (needless(v_job, p_now)).error, NULL, p_now) LOOP told := told || v_told; END LOOP;
        END IF;
        done := done + 1;
        more := clock_timestamp() >= p_until AND done < cardinality(p_numbers);
        EXIT WHEN more;
    END LOOP;
END $$;

-- Takes back these jobs, whose leases have expired.
CREATE FUNCTION end_leases(p_queue queue, p_numbers bigint[], p_until timestamptz, p_now bigint, OUT done int, OUT more boolean, OUT told answer[])
LANGUAGE plpgsql AS $$
DECLARE v_number bigint; v_job job; v_told answer; v_left leaving[] := '{}';
BEGIN
    done := 0;
    more := false;
    told := '{}';
    FOREACH v_number IN ARRAY p_numbers LOOP
        SELECT * INTO v_job FROM job WHERE number = v_number FOR UPDATE;
        FOREACH v_told IN ARRAY take_back(p_queue, v_job, p_now) LOOP told := told || v_told; END LOOP;
        v_left := v_left || left_by(p_queue, v_job);
        done := done + 1;
        more := clock_timestamp() >= p_until AND done < cardinality(p_numbers);
        EXIT WHEN more;
    END LOOP;
    PERFORM leave_behind(v_left, NULL, p_now);
END $$;

-- Ends jobs that have expired, or whose lease has. If that fails, it ends each one by itself, and sets aside those
-- whose rows are damaged. `more`: there may be others.
CREATE FUNCTION end_due(p_queue queue, p_leases boolean, p_from bigint, p_until timestamptz, p_now bigint,
    OUT done int, OUT more boolean, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE c_most CONSTANT int := 1024; v_numbers bigint[]; v_number bigint; v_one record;
BEGIN
    IF p_leases THEN
        v_numbers := ARRAY(SELECT number FROM job WHERE queue = p_queue.id AND state = 'running' AND at <= p_now AND at >= p_from
            ORDER BY at, place LIMIT c_most FOR UPDATE SKIP LOCKED);
    ELSE
        v_numbers := ARRAY(SELECT number FROM job WHERE queue = p_queue.id AND expires BETWEEN p_from AND p_now
            ORDER BY expires, place LIMIT c_most FOR UPDATE SKIP LOCKED);
    END IF;
    BEGIN
        v_one := CASE WHEN p_leases THEN end_leases(p_queue, v_numbers, p_until, p_now) ELSE expire_these(p_queue, v_numbers, p_until, p_now) END;
        done := v_one.done;
        more := v_one.more;
        told := v_one.told;
    EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
        done := 0;
        more := false;
        told := '{}';
        FOREACH v_number IN ARRAY v_numbers LOOP
            BEGIN
                v_one := CASE WHEN p_leases THEN end_leases(p_queue, ARRAY[v_number], p_until, p_now)
                    ELSE expire_these(p_queue, ARRAY[v_number], p_until, p_now) END;
                told := told || v_one.told;
            EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
                told := told || set_aside(p_queue, v_number, SQLERRM, p_now);
            END;
            done := done + 1;
            more := clock_timestamp() >= p_until AND done < cardinality(v_numbers);
            EXIT WHEN more;
        END LOOP;
    END;
    more := more OR cardinality(v_numbers) = c_most;
END $$;

-- Deletes jobs that are no longer to be kept, as long as there are more, for up to 50 ms.
CREATE FUNCTION drop_ended(p_queue queue, p_from bigint, p_now bigint, p_tells boolean, OUT done int, OUT told answer[])
LANGUAGE plpgsql AS $$
DECLARE c_most CONSTANT int := 1024; v_until timestamptz := clock_timestamp() + interval '50 ms'; v_spots tid[]; v_numbers bigint[]; v_names text[];
BEGIN
    done := 0;
    told := '{}';
    LOOP
        v_spots := ARRAY(SELECT ctid FROM ended WHERE queue = p_queue.id AND died = false AND gone_at <= p_now AND gone_at >= p_from
                ORDER BY gone_at LIMIT c_most FOR UPDATE SKIP LOCKED)
            || ARRAY(SELECT ctid FROM ended WHERE queue = p_queue.id AND died AND gone_at <= p_now AND gone_at >= p_from
                ORDER BY gone_at LIMIT c_most FOR UPDATE SKIP LOCKED);
        EXIT WHEN cardinality(v_spots) = 0;
        WITH d AS (DELETE FROM ended WHERE ctid = ANY (v_spots) RETURNING number, name)
        SELECT array_agg(number), array_agg(name) INTO v_numbers, v_names FROM d;
        PERFORM forget(p_queue, v_names, p_now);
        IF pg_sequence_last_value('edge_bells') IS NOT NULL THEN
            PERFORM ring_edges_of(array_fill(p_queue.id, ARRAY[cardinality(v_numbers)]), v_numbers, ARRAY(SELECT generate_series(1, cardinality(v_numbers))));
        END IF;
        IF p_tells THEN
            told := told || ARRAY(SELECT told(id_of(u.name, u.number), NULL) FROM unnest(v_numbers, v_names) u(number, name));
        END IF;
        done := done + cardinality(v_spots);
        EXIT WHEN cardinality(v_spots) < c_most OR clock_timestamp() >= v_until;
    END LOOP;
END $$;

-- Deletes what was to be remembered until now.
CREATE FUNCTION drop_marks(p_queue queue, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE c_most CONSTANT int := 2048; v_until timestamptz := clock_timestamp() + interval '50 ms'; v_count int; v_more boolean;
BEGIN
    LOOP
        DELETE FROM mark WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM mark WHERE queue = p_queue.id AND until <= p_now LIMIT c_most FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_more := v_count = c_most;
        DELETE FROM executed WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM executed WHERE queue = p_queue.id AND until <= p_now LIMIT c_most FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_more := v_more OR v_count = c_most;
        DELETE FROM root WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM root WHERE queue = p_queue.id AND until <= p_now LIMIT c_most FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_more := v_more OR v_count = c_most;
        DELETE FROM gone WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM gone WHERE queue = p_queue.id AND until < p_now LIMIT c_most FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_more := v_more OR v_count = c_most;
        DELETE FROM note WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM note WHERE queue = p_queue.id AND until > 0 AND until <= p_now LIMIT c_most FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS v_count = ROW_COUNT;
        EXIT WHEN NOT v_more AND v_count < c_most OR clock_timestamp() >= v_until;
    END LOOP;
END $$;

-- Does all that is due by now, in pieces. `p_due_since` asks for the jobs that have become due since then.
CREATE FUNCTION tick(p_queue queue, p_due_since bigint, p_now bigint, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE
    v_low bigint;
    v_part record;
    v_more boolean := false;
    v_before bigint;
    v_until timestamptz := clock_timestamp() + interval '50 ms';
    v_floors bigint[] := looks_from(p_queue.floors, 9, 1::bigint << 52, p_now);
    v_is_dear boolean := is_dear(p_queue.floors, 9, p_now);
    -- What ended long ago was seen by an earlier tick, except what is locked, or is more than one takes.
    v_from bigint := CASE WHEN is_dear(p_queue.floors, 8, p_now) THEN p_now - 10000 ELSE -9223372036854775808 END;
    v_passed bigint := passed_ends();
BEGIN
    told := '{}';
    v_before := pg_sequence_last_value(p_queue.ticked);
    IF v_before <= p_now THEN PERFORM setval(p_queue.ticked, p_now); END IF;
    PERFORM note_lines(p_queue, p_now);
    IF NOT pg_try_advisory_xact_lock(lock_of('tick', p_queue.id)) THEN
        -- Another caller ticks, maybe in a long transaction. Jobs that claims have passed by do not wait for it.
        PERFORM set_head_back(p_queue.floors, p_now) WHERE v_before <> 0;
        PERFORM setval(p_queue.ticked, 0) WHERE v_before = 0;
        RETURN;
    END IF;
    IF was_set_back(p_queue, p_now) THEN
        told := set_clock_back(p_queue, p_now, pg_sequence_last_value(p_queue.seen) - p_now);
        -- Jobs may be due before any floor of the wrong time.
        v_floors := '{0,0,0,0}';
    ELSE
        PERFORM setval(p_queue.seen, greatest(p_now, pg_sequence_last_value(p_queue.seen)));
    END IF;
    IF p_queue.limited AND p_queue.limit_sorts = '' THEN
        v_more := end_limits(p_queue, v_until);
        v_floors := '{0,0,0,0}';
    END IF;
    v_part := end_due(p_queue, true, v_from, v_until, p_now);
    told := told || v_part.told;
    v_more := v_more OR v_part.more;
    v_passed := v_passed + v_part.done;
    v_part := end_due(p_queue, false, v_from, v_until, p_now);
    told := told || v_part.told;
    v_more := v_more OR v_part.more;
    IF p_due_since IS NOT NULL THEN
        SELECT told || coalesce(array_agg(told(id_of(j.name, j.number), 'ready') ORDER BY j.at, j.place), '{}') INTO told FROM (
            SELECT * FROM job WHERE queue = p_queue.id AND state = 'ready' AND at > p_due_since AND at <= p_now AND since < at
            LIMIT 1024) j;
        IF cardinality(told) >= 1024 THEN told := told || more_answer(1); END IF;
    END IF;
    v_part := drop_ended(p_queue, v_from, p_now, p_due_since IS NOT NULL);
    told := told || v_part.told;
    v_passed := v_passed + v_part.done;
    IF v_from < 0 THEN PERFORM note_look(p_queue.floors, 8, passed_ends() - v_passed, p_now); END IF;
    PERFORM drop_marks(p_queue, p_now);
    -- Once a minute.
    IF v_before / 60000 <> p_now / 60000 THEN PERFORM drop_workers(p_queue, p_now); END IF;
    told := told || tick_periodic(p_queue, p_now);
    v_passed := passed_ready();
    -- The floors: the scan that passes the dead entries of the index.
    FOR v_priority IN 0 .. 3 LOOP
        SELECT at INTO v_low FROM job WHERE queue = p_queue.id AND state = 'ready' AND priority = v_priority
            AND at >= v_floors[v_priority + 1]
        ORDER BY at, place LIMIT 1;
        PERFORM setval(p_queue.floors[v_priority + 1], least(coalesce(v_low, p_now), p_now) - 1);
    END LOOP;
    PERFORM set_head_back(p_queue.floors, p_now);
    IF NOT v_is_dear THEN PERFORM note_look(p_queue.floors, 9, 2 * (passed_ready() - v_passed), p_now); END IF;
    -- Jobs that wait for the end of a lease or an expired job do not wait another second: the next call ticks.
    PERFORM setval(p_queue.ticked, 0) WHERE v_more;
END $$;

-- Notes whether jobs are in lines of kinds (see `has_lines`).
CREATE FUNCTION note_lines(p_queue queue, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM job WHERE queue = p_queue.id AND state = 'held' AND held_by >= 'o' AND held_by < 'p' ORDER BY held_by LIMIT 1) THEN
        PERFORM setval(p_queue.floors[10], p_now);
    END IF;
END $$;

-- Makes the head begin again at the floors.
CREATE FUNCTION set_head_back(p_registers regclass[], p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM setval(p_registers[5], 0), setval(p_registers[6], p_now % 4096);
END $$;

-- Takes back a job whose lease has expired.
CREATE FUNCTION take_back(p_queue queue, p_job job, p_now bigint) RETURNS answer[] LANGUAGE plpgsql AS $$
DECLARE
    v_told answer[];
    v_id text := id_of(p_job.name, p_job.number);
    v_error text := 'its worker was silent for ' || shown_time(p_queue.lease);
    v_end text := end_of_lease(p_job.silent, p_job.stopping);
BEGIN
    -- Its worker has not ended it.
    p_job.token := NULL;
    -- The silence at the end of a run is not part of it. For a job whose process died, its length is unknown.
    v_told := end_one(p_queue, p_job, v_end, NULL, CASE WHEN v_end = 'failed' THEN v_error END, NULL,
        CASE WHEN p_job.silent THEN p_job.at - p_queue.lease - p_job.since ELSE 0 END, p_now);
    IF v_end = 'crashed' AND EXISTS (SELECT FROM job WHERE number = p_job.number) THEN
        v_told := v_told || line('taken_back', v_id, p_job.kind, p_job.failures,
            concat_ws(' ', 'its worker', to_json(p_job.worker)::text) || ' was not heard of for '
                || shown_time(round(greatest(p_job.at - greatest(p_job.since, p_job.renewed), 0), -1)::bigint));
    END IF;
    IF v_end <> 'failed' THEN RETURN v_told; END IF;
    v_told := v_told || line('taken_back', v_id, p_job.kind, p_job.failures, v_error);
    IF NOT EXISTS (SELECT FROM job WHERE number = p_job.number) THEN
        v_told := v_told || line('died', v_id, p_job.kind, p_job.failures, v_error);
    END IF;
    RETURN v_told;
END $$;

CREATE FUNCTION shown_time(p_time bigint) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN p_time < 1000 THEN p_time || 'ms' ELSE trim_scale(p_time / 1000.0)::text || 's' END $$;

-- The jobs of schedules with a fixed interval. Each tick is made once, by the transaction that has locked its row. In
-- any order, so that those which a push holds up are not always the first ones. If that fails, it makes those of each
-- schedule by itself, and sets aside those whose rows are damaged.
CREATE FUNCTION tick_periodic(p_queue queue, p_now bigint, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE
    v_until timestamptz := clock_timestamp() + interval '50 ms';
    v_names text[] := ARRAY(SELECT name FROM periodic WHERE queue = p_queue.id AND every IS NOT NULL
        AND (bounded(last) + bounded(every) <= p_now OR last NOT BETWEEN 0 AND 1::bigint << 55)
        ORDER BY random() LIMIT 256 FOR UPDATE SKIP LOCKED);
    v_name text;
    v_reason text;
BEGIN
    BEGIN
        told := make_ticks(p_queue, v_names, v_until, p_now);
    EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
        told := '{}';
        FOREACH v_name IN ARRAY v_names LOOP
            BEGIN
                told := told || make_ticks(p_queue, ARRAY[v_name], v_until, p_now);
            EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
                v_reason := SQLERRM;
                INSERT INTO damaged SELECT nextval('place'), queue, 'periodic', name, kind, payload, p_now, v_reason, row_to_json(p)::text
                FROM periodic p WHERE queue = p_queue.id AND name = v_name;
                DELETE FROM periodic WHERE queue = p_queue.id AND name = v_name;
                PERFORM warn(format('the schedule "%s" of the queue "%s" is damaged, and is set aside', left(v_name, 60), left(p_queue.name, 60)),
                    v_reason, 'Look at its row in the table "damaged". Then remove it, and register it again.');
                told := told || line('damaged_schedule', v_name, NULL, 0, v_reason);
            END;
        END LOOP;
    END;
END $$;

-- Makes the jobs of these schedules.
CREATE FUNCTION make_ticks(p_queue queue, p_names text[], p_until timestamptz, p_now bigint, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE v_row periodic; v_name text; v_pushed record; v_runs boolean; v_patience text := current_setting('lock_timeout'); v_told answer;
BEGIN
    told := '{}';
    FOREACH v_name IN ARRAY p_names LOOP
        SELECT * INTO v_row FROM periodic WHERE queue = p_queue.id AND name = v_name FOR UPDATE;
        IF v_row.last NOT BETWEEN 0 AND 1::bigint << 55 THEN
            RAISE numeric_value_out_of_range USING MESSAGE = format('its last tick is %s, which is no time', v_row.last);
        END IF;
        -- Missed ticks make one job.
        v_row.last := v_row.last + v_row.every * ((p_now - v_row.last) / v_row.every);
        v_runs := v_row.run IS NOT NULL AND number_of(p_queue.id, v_row.run) IS NOT NULL;
        IF NOT v_runs THEN
            BEGIN
                -- A push of its twin that is not committed holds up this job, and not the claim that ticks.
                PERFORM set_config('lock_timeout', '50', true);
                SELECT * INTO v_pushed FROM push_one(p_queue, v_row.kind, v_row.payload,
                    coalesce(v_row.settings, '{}') || jsonb_build_object('pushed', v_row.last, 'run_at', v_row.last), '{}', false, p_now);
                FOREACH v_told IN ARRAY told(v_pushed.id, v_pushed.state) || v_pushed.told LOOP told := told || v_told; END LOOP;
                v_row.run := v_pushed.id;
                PERFORM ring(p_queue.id, p_queue.bell), set_config('lock_timeout', v_patience, true);
            EXCEPTION WHEN lock_not_available THEN
                EXIT WHEN clock_timestamp() >= p_until + interval '100 ms';
                CONTINUE;
            WHEN OTHERS THEN
                -- Two that block each other, and a server that fails, are no fault of the schedule.
                IF SQLSTATE ~ '^(08|25|40|53|55|57|58|XX)' THEN RAISE; END IF;
                -- Any other error comes again with each tick, and every claim ticks. So the tick is passed.
                PERFORM warn(format('the schedule "%s" of the queue "%s" made no job', left(v_row.name, 60), left(p_queue.name, 60)), SQLERRM,
                    'Register it with settings that a push takes, or remove it.');
                told := told || line('unmade', v_row.name, v_row.kind, 0, SQLERRM);
            END;
        END IF;
        UPDATE periodic SET last = v_row.last, run = v_row.run, skipped = skipped + v_runs::int
        WHERE queue = p_queue.id AND name = v_row.name;
        EXIT WHEN clock_timestamp() >= p_until;
    END LOOP;
END $$;
