-- The workers of a queue. Each one is noted with the calls that it makes anyway, once in a third of a lease. No rule
-- of the queue reads what is noted: it is only shown.

-- Notes that a worker was heard of, and what it has said of itself: `p_about` has its number, process, host, language
-- and version, and `stuck`. At most one row is written in a third of a lease, and in a second; the beginning of its
-- stop is noted at once. It never waits: a row that is locked stays as it is. A transaction that is open for a second
-- is a user's, and may stay open for long.
CREATE FUNCTION note_worker(p_queue queue, p_name text, p_about json, p_kinds text[], p_slots int, p_stops boolean, p_now bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    -- A row with longer texts would cost more than its worker is worth.
    c_kinds CONSTANT int := 256;
    v_old worker;
    v_new worker;
    v_was boolean;
BEGIN
    v_new.number := CASE WHEN p_about->>'number' ~ '^[0-9]{1,18}$' THEN (p_about->>'number')::bigint
        ELSE hashtextextended(coalesce(p_name, ''), 0) END;
    SELECT * INTO v_old FROM worker WHERE queue = p_queue.id AND number = v_new.number;
    v_was := FOUND;
    p_stops := coalesce(p_stops, false);
    -- Two may share a name: one of them stops, and the other one would begin again in each call.
    IF v_old.seen <= p_now AND (v_old.stopping OR NOT p_stops) AND v_old.seen > p_now - 1000
        OR current_setting('transaction_read_only') = 'on' OR statement_timestamp() - transaction_timestamp() > interval '1 s' THEN RETURN; END IF;
    v_new.kinds := CASE WHEN coalesce(array_ndims(p_kinds), 1) = 1 AND cardinality(p_kinds) <= c_kinds AND octet_length(p_kinds::text) <= 16384 THEN p_kinds END;
    IF v_old.seen <= p_now AND v_old.stopping = p_stops AND v_old.seen > p_now - p_queue.lease / 3
        AND v_old.slots IS NOT DISTINCT FROM p_slots AND v_old.kinds IS NOT DISTINCT FROM v_new.kinds THEN RETURN; END IF;
    IF p_about IS NOT NULL THEN
        PERFORM check_members('a worker', p_about::jsonb, '{number,process,host,language,version,stuck,queue,name,kinds,slots,stopping}');
    END IF;
    v_new.process := CASE WHEN p_about->>'process' ~ '^[0-9]{1,9}$' THEN (p_about->>'process')::int END;
    v_new.stuck := CASE WHEN p_about->>'stuck' ~ '^[0-9]{1,9}$' THEN (p_about->>'stuck')::int ELSE 0 END;
    IF v_was THEN
        -- Kinds that do not change are not written again, however long they are.
        UPDATE worker SET name = left(p_name, 255), process = v_new.process, host = left(p_about->>'host', 255), language = left(p_about->>'language', 255),
            version = left(p_about->>'version', 255), kinds = CASE WHEN kinds IS NOT DISTINCT FROM v_new.kinds THEN kinds ELSE v_new.kinds END,
            slots = p_slots, stuck = v_new.stuck, stopping = p_stops, seen = p_now,
            -- It was stopped, and begins again; or the clock was set back.
            began = CASE WHEN stopping AND NOT p_stops THEN p_now ELSE least(began, p_now) END
        WHERE ctid = (SELECT ctid FROM worker WHERE queue = p_queue.id AND number = v_new.number FOR NO KEY UPDATE SKIP LOCKED);
    ELSIF pg_try_advisory_xact_lock(lock_of('worker ' || v_new.number, p_queue.id)) THEN
        -- Under this lock no other call is making the row, for whose commit an insert would wait.
        INSERT INTO worker (queue, number, name, process, host, language, version, kinds, slots, stuck, began, seen, stopping)
        VALUES (p_queue.id, v_new.number, left(p_name, 255), v_new.process, left(p_about->>'host', 255), left(p_about->>'language', 255),
            left(p_about->>'version', 255), v_new.kinds, p_slots, v_new.stuck, p_now, p_now, p_stops)
        ON CONFLICT DO NOTHING;
    END IF;
END $$;

-- The same for a process that is a worker of each of these queues: a list of {queue, name, kinds, slots, stopping}, each
-- with what `p_about` has above.
CREATE FUNCTION note_workers(p_workers text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_one json; v_queue queue; v_now bigint := clock();
BEGIN
    FOR v_one IN SELECT w FROM json_array_elements(p_workers::json) w LIMIT 256 LOOP
        SELECT * INTO v_queue FROM queue WHERE name = v_one->>'queue';
        CONTINUE WHEN NOT FOUND;
        PERFORM note_worker(v_queue, v_one->>'name', v_one, CASE WHEN json_typeof(v_one->'kinds') = 'array'
                THEN ARRAY(SELECT json_array_elements_text(v_one->'kinds')) END,
            (v_one->>'slots')::int, (v_one->>'stopping')::boolean, v_now);
    END LOOP;
EXCEPTION WHEN data_exception OR SQLSTATE 'WQ002' THEN
    -- The call has leases and ends with it.
    PERFORM warn_of_about(SQLERRM);
END $$;

CREATE FUNCTION warn_of_about(p_error text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM warn('a worker is not noted', p_error, 'The call goes on. Mend what the worker says of itself (`p_about`).');
END $$;

-- Deletes the workers that were not heard of for a day, or have stopped.
CREATE FUNCTION drop_workers(p_queue queue, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 1024;
    c_day CONSTANT bigint := 86400000;
    v_until timestamptz := clock_timestamp() + interval '50 ms';
    v_count int;
BEGIN
    LOOP
        DELETE FROM worker WHERE ctid = ANY (ARRAY(SELECT ctid FROM worker WHERE queue = p_queue.id AND (seen < p_now - c_day
                OR stopping AND seen < p_now - least(p_queue.lease, c_day - 60000) - 60000
                -- A time that is far ahead is one of before the clock was set back.
                OR seen > p_now + c_day)
            LIMIT c_most FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS v_count = ROW_COUNT;
        EXIT WHEN v_count < c_most OR clock_timestamp() >= v_until;
    END LOOP;
END $$;

-- The workers of a queue, the silent ones last, each with up to `p_jobs` of its jobs: {id, kind, ran}. A job is of
-- the newest worker of its name that was there when it was claimed. Workers that call `claim` alone are seen by their
-- jobs. A worker with a job that runs alone has no free slot. `silent`: two thirds of its lease have passed since it
-- was heard of, or since its leases were renewed.
CREATE FUNCTION workers_of(p_queue text, p_jobs int DEFAULT 64)
RETURNS TABLE (name text, process bigint, host text, language text, version text, kinds text[], slots bigint, busy bigint, began bigint,
    silent_for bigint, silent boolean, stopping boolean, newest_ran bigint, lease_left bigint, jobs json) STABLE LANGUAGE plpgsql AS $$
DECLARE
    c_workers CONSTANT int := 256;
    c_jobs CONSTANT int := 10000;
    v_queue queue := queue_of(p_queue);
    v_now bigint := clock();
BEGIN
    RETURN QUERY WITH w AS MATERIALIZED (
        SELECT coalesce(x.name, '') AS name, x.process, x.host, x.language, x.version, x.kinds, x.slots, x.stuck, x.stopping,
            least(greatest(x.began, 0), v_now) AS began, least(greatest(x.seen, 0), v_now) AS seen,
            -- Of two that have begun in the same millisecond.
            row_number() OVER (PARTITION BY coalesce(x.name, ''), least(greatest(x.began, 0), v_now) ORDER BY x.number) AS nth
        FROM worker x WHERE x.queue = v_queue.id
    ), e AS (
        SELECT w.name, w.began AS since, 0 AS kind_of, w.began, NULL::bigint AS number, NULL::text AS id, NULL::text AS kind, NULL::bigint AS until,
            NULL::boolean AS silent, NULL::boolean AS stopping, NULL::boolean AS alone, NULL::bigint AS heard FROM w WHERE w.nth = 1
        UNION ALL (SELECT coalesce(j.worker, ''), least(greatest(j.since, 0), v_now), 1, NULL, j.number, id_of(j.name, j.number), j.kind,
                greatest(bounded(j.at), 0), j.silent, j.stopping, j.suspect, least(greatest(j.since, j.renewed, 0), v_now)
            FROM job j WHERE j.queue = v_queue.id AND j.state = 'running' LIMIT c_jobs)
    ), h AS (
        -- In one pass: a join of jobs and workers would be planned for few of them.
        SELECT e.*, coalesce(max(e.began) OVER (PARTITION BY e.name ORDER BY e.since, e.kind_of),
            min(e.began) OVER (PARTITION BY e.name)) AS of FROM e
    ), o AS (
        SELECT h.*, row_number() OVER (PARTITION BY h.name, h.of ORDER BY h.since, h.number) AS nth FROM h WHERE h.kind_of = 1
    ), g AS (
        SELECT o.name, o.of AS began, count(*) AS busy, max(o.heard) AS heard, min(o.since) AS first, max(o.since) AS newest, max(o.until) AS until,
            max(o.until - o.heard) FILTER (WHERE NOT o.silent) AS lease, bool_or(o.stopping) AS stopping, bool_or(o.alone) AS alone,
            json_agg(json_build_object('id', o.id, 'kind', o.kind, 'ran', v_now - o.since) ORDER BY o.since, o.number)
                FILTER (WHERE o.nth <= p_jobs) AS jobs
        FROM o GROUP BY o.name, o.of
    ), a AS (
        SELECT coalesce(w.name, g.name) AS name, w.process, w.host, w.language, w.version, w.kinds, w.slots, coalesce(w.stuck, 0) AS stuck,
            least(w.began, g.first) AS began, v_now - greatest(w.seen, g.heard) AS silent_for,
            CASE WHEN g.lease IS NULL THEN greatest(bounded(v_queue.lease) * 2 / 3, 3000) ELSE g.lease * 2 / 3 END AS patience,
            coalesce(w.stopping, g.stopping, false) AS stopping, g.busy, g.alone, g.newest, g.until, g.jobs
        FROM w FULL JOIN g ON w.name = g.name AND w.began = g.began AND w.nth = 1
        WHERE w.stopping IS NOT TRUE OR g.busy > 0
    )
    SELECT nullif(a.name, ''), CASE WHEN a.process >= 0 THEN a.process::bigint END, a.host, a.language, a.version,
        array_remove(a.kinds, NULL), CASE WHEN a.slots >= 0 THEN a.slots::bigint END,
        CASE WHEN a.alone THEN greatest(a.slots, a.busy) ELSE coalesce(a.busy, 0) + greatest(a.stuck, 0) END, a.began, a.silent_for, a.silent_for > a.patience, a.stopping,
        v_now - a.newest, CASE WHEN a.busy > 0 THEN greatest(a.until - v_now, 0) END, coalesce(a.jobs, '[]')
    FROM a ORDER BY a.silent_for > a.patience, a.name, a.began LIMIT c_workers;
END $$;
