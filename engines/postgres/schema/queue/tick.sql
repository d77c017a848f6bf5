-- All that time brings. Any number of callers may tick: what another one does is skipped, so nobody
-- leads, and a queue goes on as long as anybody claims from it.

-- Ends jobs that nobody has taken by the time at which they expire, if that lies between these two.
CREATE FUNCTION expire(p_queue queue, p_from bigint, p_now bigint, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE v_number bigint; v_job job;
BEGIN
    told := '{}';
    FOR v_number IN SELECT number FROM job WHERE queue = p_queue.id AND expires BETWEEN p_from AND p_now
        ORDER BY expires, place LIMIT 1024 LOOP
        -- One of them may have ended this one.
        SELECT * INTO v_job FROM job WHERE number = v_number AND expires <= p_now AND state <> 'running' FOR UPDATE SKIP LOCKED;
        IF FOUND AND (v_job.state <> 'waiting' OR has_free_edges(v_number)) THEN
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
    v_floors bigint[] := looks_from(p_queue.floors, 9, 1::bigint << 52, p_now);
    v_is_dear boolean := is_dear(p_queue.floors, 9, p_now);
    -- What ended long ago was seen by an earlier tick, but for what is locked, or is more than one takes.
    v_from bigint := CASE WHEN is_dear(p_queue.floors, 8, p_now) THEN p_now - 10000 ELSE 0 END;
    v_passed bigint := passed_ends();
    v_left leaving[] := '{}';
BEGIN
    told := '{}';
    v_before := pg_sequence_last_value(p_queue.ticked);
    IF v_before <= p_now THEN PERFORM setval(p_queue.ticked, p_now); END IF;
    IF NOT pg_try_advisory_xact_lock(lock_of('tick', p_queue.id)) THEN
        -- Another one ticks, and its transaction may stay open for long. Jobs that claims have passed by do not wait for it.
        PERFORM set_head_back(p_queue.floors, p_now);
        RETURN;
    END IF;
    IF was_set_back(p_queue, p_now) THEN
        told := set_clock_back(p_queue, p_now, pg_sequence_last_value(p_queue.seen) - p_now);
        -- Jobs may be due before any floor of the wrong time.
        v_floors := '{0,0,0,0}';
    ELSE
        PERFORM setval(p_queue.seen, greatest(p_now, pg_sequence_last_value(p_queue.seen)));
    END IF;
    -- Leases that are over.
    FOR v_job IN SELECT * FROM job WHERE queue = p_queue.id AND state = 'running' AND at <= p_now AND at >= v_from
        ORDER BY at, place LIMIT c_most FOR UPDATE SKIP LOCKED
    LOOP
        told := told || take_back(p_queue, v_job, p_now);
        v_left := v_left || left_by(p_queue, v_job);
        v_passed := v_passed + 1;
    END LOOP;
    PERFORM leave_behind(v_left, NULL, p_now);
    told := told || expire(p_queue, v_from, p_now);
    IF p_due_since IS NOT NULL THEN
        SELECT told || coalesce(array_agg(told(id_of(name, number), 'ready') ORDER BY at, place), '{}') INTO told FROM job
        WHERE queue = p_queue.id AND state = 'ready' AND at > p_due_since AND at <= p_now AND since < at;
    END IF;
    -- Jobs whose time to be kept is over.
    FOR v_row IN DELETE FROM ended WHERE number = ANY (ARRAY(
            SELECT number FROM ended WHERE queue = p_queue.id AND died = false AND gone_at <= p_now AND gone_at >= v_from
            ORDER BY gone_at LIMIT 5000 FOR UPDATE SKIP LOCKED)
            || ARRAY(SELECT number FROM ended WHERE queue = p_queue.id AND died AND gone_at <= p_now AND gone_at >= v_from
            ORDER BY gone_at LIMIT 5000 FOR UPDATE SKIP LOCKED)) RETURNING number, name
    LOOP
        v_passed := v_passed + 1;
        IF v_row.name IS NOT NULL THEN PERFORM forget(p_queue, v_row.name, p_now); END IF;
        PERFORM ring_edges(p_queue.id, v_row.number, false);
        IF p_due_since IS NOT NULL THEN told := told || told(id_of(v_row.name, v_row.number), NULL); END IF;
    END LOOP;
    IF v_from = 0 THEN PERFORM note_look(p_queue.floors, 8, passed_ends() - v_passed, p_now); END IF;
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
END $$;

-- Lets the head begin anew from the floors.
CREATE FUNCTION set_head_back(p_registers regclass[], p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM setval(p_registers[5], 0), setval(p_registers[6], p_now % 4096);
END $$;

-- Takes back a job whose lease is over.
CREATE FUNCTION take_back(p_queue queue, p_job job, p_now bigint) RETURNS answer[] LANGUAGE plpgsql AS $$
DECLARE
    v_told answer[];
    v_id text := id_of(p_job.name, p_job.number);
    v_error text := 'its worker was silent for ' || shown_time(p_queue.lease);
    v_end text := end_of_lease(p_job.silent, p_job.stopping);
BEGIN
    -- Its worker has not ended it.
    p_job.token := NULL;
    -- The silence at the end of a run is no part of it. Of one whose process died nobody knows how long it was.
    v_told := end_one(p_queue, p_job, v_end, NULL, CASE WHEN v_end = 'failed' THEN v_error END, NULL,
        CASE WHEN p_job.silent THEN p_job.at - p_queue.lease - p_job.since ELSE 0 END, p_now);
    IF v_end <> 'failed' THEN RETURN v_told; END IF;
    v_told := v_told || line('taken_back', v_id, p_job.kind, p_job.failures, v_error);
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
DECLARE v_row periodic; v_passed bigint; v_pushed record; v_runs boolean; v_patience text := current_setting('lock_timeout');
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
                -- A push of its twin that is not committed holds up this job, and not the claim that ticks.
                PERFORM set_config('lock_timeout', '50', true);
                SELECT * INTO v_pushed FROM push_one(p_queue, v_row.kind, v_row.payload,
                    coalesce(v_row.settings, '{}') || jsonb_build_object('pushed', v_row.last), '{}', false, p_now);
                told := told || told(v_pushed.id, v_pushed.state) || v_pushed.told;
                v_row.run := v_pushed.id;
                PERFORM ring(p_queue.id, p_queue.bell), set_config('lock_timeout', v_patience, true);
            EXCEPTION WHEN lock_not_available THEN
                CONTINUE;
            WHEN OTHERS THEN
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
