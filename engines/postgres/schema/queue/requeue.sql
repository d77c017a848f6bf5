-- Dead jobs that run again, after those of the jobs that they waited for which live.

-- The jobs with these ids that live, and do not wait for this dead one, not even through others. Mostly no job waits
-- for a dead one, so the search begins there: from the other end it would pass the whole chain before it.
CREATE FUNCTION living_of(p_queue int, p_ids text[], p_number bigint) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 10000;
    v_numbers bigint[] := ARRAY(SELECT n.number FROM (SELECT number_of(p_queue, i) AS number FROM unnest(p_ids) i OFFSET 0) n
        WHERE n.number IS NOT NULL ORDER BY n.number);
    v_behind bigint[];
BEGIN
    IF cardinality(v_numbers) = 0 OR NOT EXISTS (SELECT FROM edge WHERE awaited = p_number) THEN RETURN v_numbers; END IF;
    v_behind := ARRAY(
        WITH RECURSIVE behind(number) AS (SELECT p_number UNION SELECT e.job FROM behind b JOIN edge e ON e.awaited = b.number)
        SELECT number FROM behind LIMIT c_most);
    -- Where it is not known whether two would wait for each other, this one does not wait.
    IF cardinality(v_behind) = c_most THEN RETURN '{}'; END IF;
    RETURN ARRAY(SELECT n FROM unnest(v_numbers) n WHERE n NOT IN (SELECT unnest(v_behind)) ORDER BY n);
END $$;

-- Makes a dead job ready, with no failures and no crashes. If it still waited for others when it died, it waits for
-- those of them that live.
CREATE FUNCTION requeue_one(p_queue queue, p_number bigint, p_now bigint, OUT done boolean, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE v_ended ended; v_job job; v_id text; v_awaited bigint[] := '{}';
BEGIN
    told := '{}';
    IF EXISTS (SELECT FROM ended WHERE number = p_number AND waited_for IS NOT NULL) THEN
        PERFORM check_isolation('a requeue of a job that waits for others');
        -- Before the row, as in pushes that change edges of old jobs.
        PERFORM pg_advisory_xact_lock(lock_of('edges', p_queue.id));
    END IF;
    DELETE FROM ended WHERE number = p_number AND died RETURNING * INTO v_ended;
    done := FOUND;
    IF NOT done THEN RETURN; END IF;
    v_id := id_of(v_ended.name, p_number);
    IF v_ended.waited_for IS NOT NULL THEN v_awaited := living_of(p_queue.id, v_ended.waited_for, p_number); END IF;
    v_job := jsonb_populate_record(NULL::job, to_jsonb(v_ended) - 'payload' - 'data' - 'meta' - 'waited_for' || jsonb_build_object(
        'state', CASE WHEN cardinality(v_awaited) > 0 THEN 'waiting' ELSE 'ready' END, 'pending', cardinality(v_awaited),
        'at', p_now, 'place', nextval('place'), 'failures', 0, 'crashes', 0, 'due', 0, 'named', NULL, 'since', p_now, 'expires', NULL,
        'token', NULL, 'fraction', NULL, 'note', NULL, 'noted', NULL, 'resubmit', NULL));
    -- Text beside jsonb, which refuses some of what JSON allows.
    v_job.payload := v_ended.payload;
    v_job.data := v_ended.data;
    v_job.meta := v_ended.meta;
    IF v_job.skips_from IS NOT NULL THEN v_job.skips_from := v_job.place; END IF;
    -- It is unique again, unless it has a twin by now.
    IF EXISTS (SELECT FROM job j WHERE j.queue = p_queue.id AND j.uniq = v_job.uniq)
        OR EXISTS (SELECT FROM mark m WHERE m.queue = p_queue.id AND m.fingerprint = v_job.uniq AND m.until > p_now) THEN
        v_job.uniq := NULL;
    END IF;
    IF v_ended.noted IS NOT NULL THEN told := told || told(v_id, NULL, p_outcome => 'anew'); END IF;
    INSERT INTO job SELECT v_job.* ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        -- A twin was just committed.
        v_job.uniq := NULL;
        INSERT INTO job SELECT v_job.* ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN RAISE 'waterline: the job "%" changes too fast', v_id USING ERRCODE = '40001'; END IF;
    END IF;
    PERFORM note_waiting(p_queue);
    told := told || told(v_id, v_job.state::text);
    IF cardinality(v_awaited) = 0 THEN
        PERFORM ring(p_queue.id, p_queue.bell);
    ELSE
        INSERT INTO edge SELECT n, p_number FROM unnest(v_awaited) n;
        -- One of them may end, or have ended, without seeing this transaction.
        INSERT INTO edge_bell (queue, awaited) SELECT p_queue.id, n FROM unnest(v_awaited) n;
    END IF;
END $$;

-- The dead jobs that a dead one still waited for when it died, the first one last.
CREATE FUNCTION dead_before(p_queue int, p_number bigint) RETURNS bigint[] LANGUAGE sql AS
$$ SELECT coalesce(array_agg(d.number ORDER BY w.place DESC), '{}') FROM ended e,
        LATERAL (SELECT ended_of(p_queue, i) AS number, place FROM unnest(e.waited_for) WITH ORDINALITY u(i, place) OFFSET 0) w,
        LATERAL (SELECT b.number FROM ended b WHERE b.number = w.number AND b.died LIMIT 1) d
    WHERE e.number = p_number AND e.waited_for IS NOT NULL $$;

-- Requeues some dead jobs, each one after those that it waited for: so it finds them alive, even if the next piece
-- never comes. A piece that begins far down a chain goes up to its first job, and takes the jobs from there.
CREATE FUNCTION requeue_some(p_queue queue, p_now bigint, OUT requeued bigint, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 1024;
    v_until timestamptz := clock_timestamp() + interval '500 ms';
    v_seed bigint;
    v_job bigint;
    v_other bigint;
    v_stack bigint[] := '{}';
    v_top int;
    -- Those on the stack whose dead ones are above them: not searched twice, even if two waited for each other.
    v_open bigint[] := '{}';
    v_before bigint[];
    v_one record;
    v_told answer;
BEGIN
    requeued := 0;
    told := '{}';
    IF EXISTS (SELECT FROM (SELECT e.waited_for FROM ended e WHERE e.queue = p_queue.id AND e.died
        ORDER BY e.gone_at, e.number LIMIT c_most) x WHERE x.waited_for IS NOT NULL) THEN
        PERFORM pg_advisory_xact_lock(lock_of('edges', p_queue.id));
    END IF;
    FOREACH v_seed IN ARRAY ARRAY(SELECT e.number FROM ended e WHERE e.queue = p_queue.id AND e.died
        ORDER BY e.gone_at, e.number LIMIT c_most FOR UPDATE SKIP LOCKED)
    LOOP
        v_stack[1] := v_seed;
        v_top := 1;
        WHILE v_top > 0 LOOP
            v_job := v_stack[v_top];
            v_before := CASE WHEN v_job = ANY (v_open) THEN '{}' ELSE dead_before(p_queue.id, v_job) END;
            IF cardinality(v_before) > 0 THEN
                v_open := v_open || v_job;
                FOREACH v_other IN ARRAY v_before LOOP
                    v_top := v_top + 1;
                    v_stack[v_top] := v_other;
                END LOOP;
            ELSE
                v_top := v_top - 1;
                SELECT * INTO v_one FROM requeue_one(p_queue, v_job, p_now);
                requeued := requeued + v_one.done::int;
                -- A single element in a statement of its own is appended in place; otherwise the list is copied.
                FOREACH v_told IN ARRAY v_one.told LOOP told := told || v_told; END LOOP;
                IF requeued >= c_most OR requeued > 0 AND clock_timestamp() >= v_until THEN RETURN; END IF;
            END IF;
        END LOOP;
    END LOOP;
END $$;
