-- Reads. None of them reads more in a larger queue, except `counts`, which is then kept for a while.

-- A job as it is shown. Its place in the list of its state is by `held_by` (first those that no limit holds), by
-- `priority` (of those that are ready or wait for others), by `place`, and by `tie`.
CREATE VIEW jobs AS
SELECT j.queue, j.number, j.name, id_of(j.name, j.number) AS id, shown(j.state, j.at, clock()) AS state,
    j.priority::int AS priority, CASE j.state WHEN 'running' THEN j.place ELSE j.at END AS place,
    CASE j.state WHEN 'running' THEN 0 ELSE j.place END AS tie,
    j.kind, j.payload, j.data, j.meta, j.key, j.failures, j.crashes, j.pushed, j.due,
    CASE WHEN j.state IN ('ready', 'held') AND j.at <= clock() THEN greatest(j.since, j.at) ELSE j.since END AS since,
    j.resubmit, j.error, j.fraction, j.note, j.noted, j.root, j.root_at, j.is_root, j.expires, j.cost,
    CASE WHEN j.held_by LIKE 'o%' THEN NULL ELSE j.held_by END AS held_by, j.pending,
    j.suspect, NULL::text AS skipped, NULL::bigint AS gone_at, j.worker, j.token
FROM job j
UNION ALL
SELECT e.queue, e.number, e.name, id_of(e.name, e.number), CASE WHEN e.died THEN 'dead' ELSE 'finished' END,
    e.priority::int, coalesce(e.gone_at, 9223372036854775807), e.number,
    e.kind, e.payload, e.data, e.meta, e.key, e.failures, e.crashes, e.pushed, e.due, e.since,
    e.resubmit, e.error, e.fraction, e.note, e.noted, e.root, e.root_at, e.is_root, e.expires, e.cost, NULL, 0,
    false, e.skipped, e.gone_at, NULL, NULL
FROM ended e
UNION ALL
SELECT d.queue, d.number, NULL, d.id, 'damaged', 2, d.number, 0, coalesce(d.kind, ''), coalesce(d.payload, 'null'), NULL, NULL, NULL, 0, 0, d.at, 0, d.at,
    NULL, d.reason, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, NULL, 0, false, NULL, NULL, NULL, NULL
FROM damaged d WHERE d.was = 'job';

-- A job with all that belongs to it.
CREATE FUNCTION get(p_queue text, p_id text) RETURNS SETOF jobs LANGUAGE plpgsql AS $$
DECLARE v_number bigint := any_of((queue_of(p_queue)).id, p_id);
BEGIN
    RETURN QUERY SELECT * FROM jobs WHERE number = v_number LIMIT 1;
END $$;

-- The numbers of the jobs of a state in their order, after this place. Each list is read from an index, from the
-- place on: so a page costs what it shows, however many jobs there are. It sees what its caller sees.
CREATE FUNCTION places_of(p_queue int, p_state text, p_now bigint, p_held_by text, p_priority int, p_place bigint, p_tie bigint,
    p_most bigint) RETURNS SETOF bigint STABLE LANGUAGE plpgsql AS $$
DECLARE
    c_last CONSTANT bigint := 9223372036854775807;
    v_got bigint := 0;
BEGIN
    CASE p_state
    WHEN 'ready' THEN
        IF p_held_by IS NULL THEN
            RETURN QUERY WITH RECURSIVE l(name) AS (
                (SELECT j.held_by FROM job j WHERE j.queue = p_queue AND j.state = 'held' AND j.held_by >= 'o' AND j.held_by < 'p'
                    ORDER BY j.held_by LIMIT 1)
                UNION ALL SELECT (SELECT j.held_by FROM job j WHERE j.queue = p_queue AND j.state = 'held' AND j.held_by > l.name
                    AND j.held_by < 'p' ORDER BY j.held_by LIMIT 1) FROM l WHERE l.name IS NOT NULL)
            SELECT r.number FROM (
                SELECT n, CASE WHEN n = p_priority THEN p_place ELSE -1 END, CASE WHEN n = p_priority THEN p_tie ELSE -1 END
                FROM unnest('{0,1,2,3}'::int[]) n WHERE p_priority IS NULL OR n >= p_priority) p(n, place, tie),
                LATERAL ((SELECT j.number, j.priority, j.at, j.place FROM job j
                    WHERE j.queue = p_queue AND j.state = 'ready' AND j.priority = p.n AND j.at <= p_now
                        AND (j.at, j.place) > (p.place, p.tie) ORDER BY j.at, j.place LIMIT p_most)
                    -- Those in the lines of their kinds are in the same order.
                    UNION ALL SELECT h.number, h.priority, h.at, h.place FROM l, LATERAL (SELECT j.number, j.priority, j.at, j.place FROM job j
                        WHERE j.queue = p_queue AND j.state = 'held' AND j.held_by = l.name AND j.priority = p.n
                            AND (j.at, j.place) > (p.place, p.tie) ORDER BY j.at, j.place LIMIT p_most) h) r
                ORDER BY r.priority, r.at, r.place LIMIT p_most;
            GET DIAGNOSTICS v_got = ROW_COUNT;
            p_held_by := '';
            p_priority := -1;
        END IF;
        RETURN QUERY SELECT * FROM (SELECT j.number FROM job j WHERE j.queue = p_queue AND j.state = 'held' AND j.held_by < 'o'
                AND (j.held_by, j.priority, j.at, j.place) > (p_held_by, p_priority, coalesce(p_place, -1), coalesce(p_tie, -1))
                ORDER BY j.held_by, j.priority, j.at, j.place LIMIT p_most - v_got) b
            UNION ALL SELECT * FROM (SELECT j.number FROM job j WHERE j.queue = p_queue AND j.state = 'held'
                AND (j.held_by, j.priority, j.at, j.place) > (greatest(p_held_by, 'p'), CASE WHEN p_held_by >= 'p' THEN p_priority ELSE -1 END,
                    coalesce(p_place, -1), coalesce(p_tie, -1))
                ORDER BY j.held_by, j.priority, j.at, j.place LIMIT p_most - v_got) a LIMIT p_most - v_got;
    WHEN 'scheduled' THEN
        -- One bound, since an index scan begins at one of them, and that might be the lower one.
        IF p_place IS NULL OR p_place <= p_now THEN
            p_place := p_now;
            p_tie := c_last;
        END IF;
        RETURN QUERY SELECT r.number FROM unnest('{0,1,2,3}'::int[]) p(n), LATERAL (
            SELECT j.number, j.at, j.place FROM job j
            WHERE j.queue = p_queue AND j.state = 'ready' AND j.priority = p.n AND (j.at, j.place) > (p_place, p_tie)
            ORDER BY j.at, j.place LIMIT p_most) r
            ORDER BY r.at, r.place LIMIT p_most;
    WHEN 'running' THEN
        RETURN QUERY SELECT j.number FROM job j WHERE j.queue = p_queue AND j.state = 'running' AND j.place > coalesce(p_place, -1)
            ORDER BY j.place LIMIT p_most;
    WHEN 'waiting' THEN
        RETURN QUERY SELECT j.number FROM job j WHERE j.queue = p_queue AND j.state = 'waiting' AND j.held_by IS NULL
            AND (j.priority, j.at, j.place) > (coalesce(p_priority, -1), coalesce(p_place, -1), coalesce(p_tie, -1))
            ORDER BY j.held_by, j.priority, j.at, j.place LIMIT p_most;
    WHEN 'finished', 'dead' THEN
        IF p_place IS DISTINCT FROM c_last THEN
            RETURN QUERY SELECT e.number FROM ended e WHERE e.queue = p_queue AND e.died = (p_state = 'dead')
                AND (e.gone_at, e.number) > (coalesce(p_place, -1), coalesce(p_tie, -1))
                ORDER BY e.gone_at, e.number LIMIT p_most;
            GET DIAGNOSTICS v_got = ROW_COUNT;
            p_tie := -1;
        END IF;
        RETURN QUERY SELECT e.number FROM ended e WHERE e.queue = p_queue AND e.died = (p_state = 'dead')
            AND e.gone_at IS NULL AND e.number > p_tie ORDER BY e.gone_at, e.number LIMIT p_most - v_got;
    WHEN 'damaged' THEN
        RETURN QUERY SELECT d.number FROM damaged d WHERE d.queue = p_queue AND d.was = 'job' AND d.number > coalesce(p_place, -1)
            ORDER BY d.number LIMIT p_most;
    ELSE
        RAISE 'waterline: there is no state "%"', p_state USING ERRCODE = 'WQ002';
    END CASE;
END $$;

-- The jobs of a state in their order, after one with these values.
CREATE FUNCTION list(p_queue text, p_state text, p_held_by text DEFAULT NULL, p_priority int DEFAULT NULL, p_place bigint DEFAULT NULL,
    p_tie bigint DEFAULT NULL, p_most bigint DEFAULT 100) RETURNS SETOF jobs LANGUAGE plpgsql AS $$
DECLARE v_queue int := (queue_of(p_queue)).id; v_now bigint := clock();
BEGIN
    RETURN QUERY SELECT j.* FROM
        places_of(v_queue, p_state, v_now, p_held_by, p_priority, p_place, p_tie, p_most) WITH ORDINALITY n(number, at),
        -- With a limit, this is a query for each number, and no join of two whole tables.
        LATERAL (SELECT * FROM jobs s WHERE s.number = n.number LIMIT 1) j ORDER BY n.at;
END $$;

-- The jobs in each state. A queue of up to 10,000 jobs is counted at each call. A larger one is counted again when
-- its numbers are older than a second and than 50 times the time that counting takes: so all callers together cost
-- the server a fiftieth of a core.
CREATE FUNCTION tally_of(p_queue int, p_now bigint) RETURNS tally LANGUAGE plpgsql AS $$
DECLARE
    c_few CONSTANT int := 10000;
    v_old tally;
    v_new tally;
    v_begun timestamptz := clock_timestamp();
    v_left bigint;
    v_held bigint;
    v_writes boolean;
BEGIN
    SELECT * INTO v_old FROM tally WHERE queue = p_queue;
    IF v_old.at < 0 OR v_old.took NOT BETWEEN 0 AND 3600000 THEN v_old.at := 0; v_old.took := 0; END IF;
    v_left := least(v_old.at, p_now + 1) + greatest(1000, 50 * v_old.took) - p_now;
    IF v_old.at <= p_now AND v_left > 0 THEN RETURN v_old; END IF;
    -- A read-only transaction, or one that sees an old state of the queue, leaves nothing.
    v_writes := current_setting('transaction_read_only') = 'off' AND current_setting('transaction_isolation') = 'read committed'
        AND pg_try_advisory_xact_lock(lock_of('tally', p_queue));
    -- Another caller is counting. If its transaction does not end, its numbers are for it alone.
    IF NOT v_writes AND v_old.at <= p_now AND v_left > -10000 THEN RETURN v_old; END IF;
    v_new.queue := p_queue;
    v_new.at := p_now;
    -- Each part has an index of its own, which is read without the rows where they are old.
    SELECT count(*) FILTER (WHERE at > p_now), count(*) FILTER (WHERE at <= p_now) INTO v_new.scheduled, v_new.ready
    FROM job WHERE queue = p_queue AND state = 'ready';
    SELECT sum(h.count), (array_agg(h.name ORDER BY h.count DESC, h.name) FILTER (WHERE h.name NOT LIKE 'o%'))[1],
        max(h.count) FILTER (WHERE h.name NOT LIKE 'o%') INTO v_held, v_new.held_by, v_new.held
    FROM (SELECT held_by AS name, count(*) FROM job WHERE queue = p_queue AND state = 'held' AND held_by IS NOT NULL GROUP BY held_by) h;
    v_new.ready := v_new.ready + coalesce(v_held, 0);
    SELECT count(*) INTO v_new.running FROM job WHERE queue = p_queue AND state = 'running';
    SELECT count(*) INTO v_new.waiting FROM job WHERE queue = p_queue AND state = 'waiting' AND held_by IS NULL;
    SELECT count(*) INTO v_new.finished FROM ended WHERE queue = p_queue AND died = false;
    SELECT count(*) INTO v_new.dead FROM ended WHERE queue = p_queue AND died;
    v_new.took := extract(epoch FROM clock_timestamp() - v_begun) * 1000;
    IF v_new.scheduled + v_new.ready + v_new.running + v_new.waiting + v_new.finished + v_new.dead <= c_few THEN
        IF v_writes AND v_old.queue IS NOT NULL THEN DELETE FROM tally WHERE queue = p_queue; END IF;
    ELSIF v_writes AND v_old.queue IS NOT NULL THEN
        UPDATE tally SET at = v_new.at, took = v_new.took, scheduled = v_new.scheduled, ready = v_new.ready, running = v_new.running,
            finished = v_new.finished, dead = v_new.dead, waiting = v_new.waiting, held_by = v_new.held_by, held = v_new.held
        WHERE queue = p_queue;
    ELSIF v_writes THEN
        INSERT INTO tally SELECT v_new.*;
    END IF;
    RETURN v_new;
END $$;

-- The jobs in each state that has some, and the age of these numbers in milliseconds.
CREATE FUNCTION counts(p_queue text) RETURNS TABLE (state text, count bigint, age bigint) LANGUAGE plpgsql AS $$
DECLARE v_now bigint := clock(); v_tally tally := tally_of((queue_of(p_queue)).id, v_now);
BEGIN
    RETURN QUERY SELECT c.state, c.count, v_now - v_tally.at FROM (VALUES ('scheduled', v_tally.scheduled), ('ready', v_tally.ready),
        ('running', v_tally.running), ('finished', v_tally.finished), ('dead', v_tally.dead), ('waiting', v_tally.waiting)) c(state, count)
        WHERE c.count > 0;
    RETURN QUERY SELECT 'damaged', d.count, 0::bigint FROM (SELECT count(*) FROM damaged
        WHERE queue = v_tally.queue AND was = 'job') d WHERE d.count > 0;
END $$;

-- The first ready job of each priority, and of each limit that holds some, for up to 64 limits.
CREATE FUNCTION first_ones(p_queue queue, p_now bigint) RETURNS TABLE (id text, since bigint, place bigint, held_by text) LANGUAGE plpgsql AS $$
DECLARE v_floor bigint[];
BEGIN
    -- Like claims: dead entries of the index are passed by.
    v_floor := floors_of(p_queue.floors);
    RETURN QUERY SELECT id_of(r.name, r.number), greatest(r.since, r.at), r.place, NULL::text FROM unnest('{0,1,2,3}'::int[]) p(n),
        LATERAL (SELECT j.name, j.number, j.since, j.at, j.place FROM job j
            WHERE j.queue = p_queue.id AND j.state = 'ready' AND j.priority = p.n AND j.at <= p_now AND j.at >= v_floor[p.n + 1] - 5000
            ORDER BY j.at, j.place LIMIT 1) r;
    IF NOT p_queue.limited AND NOT may_have_lines(p_queue, p_now) THEN RETURN; END IF;
    RETURN QUERY WITH RECURSIVE l(name, nth) AS (
            (SELECT j.held_by, 1 FROM job j WHERE j.queue = p_queue.id AND j.state = 'held' AND j.held_by IS NOT NULL ORDER BY j.held_by LIMIT 1)
            UNION ALL SELECT (SELECT j.held_by FROM job j WHERE j.queue = p_queue.id AND j.state = 'held' AND j.held_by > l.name
                ORDER BY j.held_by LIMIT 1), nth + 1 FROM l WHERE l.name IS NOT NULL AND nth < 64)
        SELECT id_of(r.name, r.number), greatest(r.since, r.at), r.place, l.name
        FROM (SELECT l.name FROM l UNION SELECT unnest(first_lines(p_queue.id, 64))) l, unnest('{0,1,2,3}'::int[]) p(n),
            LATERAL (SELECT j.name, j.number, j.since, j.at, j.place FROM job j
                WHERE j.queue = p_queue.id AND j.state = 'held' AND j.held_by = l.name AND j.priority = p.n
                ORDER BY j.at, j.place LIMIT 1) r WHERE l.name IS NOT NULL;
END $$;

-- Since when the job has waited that a claim takes next, or when the first one becomes due; null: there is none.
CREATE FUNCTION waits_since(p_queue text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE v_queue queue := queue_of(p_queue); v_now bigint := clock(); v_since bigint;
BEGIN
    SELECT min(f.since) INTO v_since FROM first_ones(v_queue, v_now) f;
    RETURN coalesce(v_since, (SELECT min(x.at) FROM unnest('{0,1,2,3}'::int[]) p(n), LATERAL (
        SELECT j.at FROM job j WHERE j.queue = v_queue.id AND j.state = 'ready' AND j.priority = p.n AND j.at > v_now
        ORDER BY j.at LIMIT 1) x));
END $$;

-- The number of running jobs, and which one has run longest, and for how long.
CREATE FUNCTION who_runs(p_queue text, OUT running bigint, OUT id text, OUT ran bigint) LANGUAGE plpgsql AS $$
DECLARE v_queue int := (queue_of(p_queue)).id;
BEGIN
    running := taken_of(v_queue, 'q');
    SELECT id_of(j.name, j.number), clock() - greatest(j.since, 0) INTO id, ran FROM job j WHERE j.queue = v_queue AND j.state = 'running'
    ORDER BY j.since, j.place LIMIT 1;
END $$;

-- The running jobs whose leases have expired, since when the first of them has, and the longest of the usual runs of
-- the kinds of the others, in nanoseconds.
CREATE FUNCTION how_they_run(p_queue int, p_now bigint, OUT lapsed bigint, OUT lapsed_at bigint, OUT usual bigint) LANGUAGE sql AS
$$ SELECT l.count, l.at, (SELECT max(a.mean) FROM average a WHERE a.queue = p_queue
        AND a.kind IN (SELECT j.kind FROM job j WHERE j.queue = p_queue AND j.state = 'running' AND j.at > p_now))
    FROM (SELECT count(*), min(at) AS at FROM job WHERE queue = p_queue AND state = 'running' AND at <= p_now) l $$;

-- Up to two of the kinds that have jobs in lines and that no worker takes of those heard of within a lease: the
-- caller names them in its log. They are drawn by chance, since the first two would hide the others for ever. A
-- worker that calls `claim` alone is seen by the jobs that it has.
CREATE FUNCTION untaken(p_queue queue, p_now bigint) RETURNS SETOF answer LANGUAGE sql AS
$$ SELECT ROW('lined', NULL, NULL, NULL, NULL, NULL, l.kind, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::answer
    FROM (SELECT substr(n, 2) AS kind FROM unnest(first_lines(p_queue.id, 64)) n) l
    WHERE octet_length(l.kind) <= 64 AND NOT EXISTS (SELECT FROM worker w WHERE w.queue = p_queue.id AND NOT w.stopping
        AND w.seen > p_now - p_queue.lease AND (w.kinds IS NULL OR l.kind = ANY (w.kinds)))
        AND NOT EXISTS (SELECT FROM job j WHERE j.queue = p_queue.id AND j.state = 'running' AND j.kind = l.kind AND j.at > p_now)
    ORDER BY random() LIMIT 2 $$;

-- What the status of a queue is made from.
CREATE FUNCTION status_inputs(p_queue text, p_worker text DEFAULT NULL) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_queue queue := queue_of(p_queue);
    v_now bigint := clock();
    v_peek record := peek(v_queue, p_worker, NULL, v_now);
    v_tally tally := tally_of(v_queue.id, v_now);
    v_all limits := bounds_of(v_queue.id, 'q');
    v_limit limits;
    v_first job;
    v_token bigint;
    v_runs record;
    v_how record := how_they_run(v_queue.id, v_now);
    v_ready record;
BEGIN
    SELECT * INTO v_runs FROM who_runs(p_queue);
    SELECT f.id, f.since INTO v_ready FROM first_ones(v_queue, v_now) f ORDER BY f.since, f.place LIMIT 1;
    SELECT * INTO v_first FROM job WHERE queue = v_queue.id AND state = 'held' AND held_by = v_tally.held_by
    ORDER BY priority, at, place LIMIT 1;
    IF v_first.number IS NULL THEN
        -- The counted job has begun since. Any other limit that holds a job will do.
        SELECT * INTO v_first FROM job WHERE queue = v_queue.id AND state = 'held' AND held_by = first_held(v_queue.id)
        ORDER BY priority, at, place LIMIT 1;
        v_tally.held_by := v_first.held_by;
        v_tally.held := (v_first.number IS NOT NULL)::int;
    END IF;
    v_limit := bounds_of(v_queue.id, v_tally.held_by);
    IF v_limit.rate_count IS NOT NULL THEN
        v_token := nullif(greatest(tokens_at(v_limit, bucket_of(v_limit, v_tally.held_by, v_now), v_first.cost), v_now), v_now);
    END IF;
    -- Those that can be known as they are now, however old the numbers are.
    v_tally.running := v_runs.running;
    v_tally.ready := CASE WHEN v_ready.id IS NULL THEN 0 ELSE greatest(v_tally.ready, 1) END;
    RETURN json_build_object('now', v_now, 'counts', row_to_json(v_tally), 'damaged', (SELECT count(*) FROM damaged WHERE queue = v_queue.id AND was = 'job'),
        'oldest_ready', v_ready.id, 'oldest_ready_since', v_ready.since,
        'only_held', NOT (v_peek.ready OR v_peek.has_place), 'lines', (SELECT json_object_agg(l.kind, (SELECT count(*) FROM (SELECT FROM job j
            WHERE j.queue = v_queue.id AND j.state = 'held' AND j.held_by = 'o' || l.kind LIMIT 10000) c)) FROM (SELECT substr(n, 2) FROM unnest(first_lines(v_queue.id, 64)) n) l(kind)),
        'due', v_peek.due, 'paused_until', nullif(greatest(v_queue.paused_until, v_now), v_now),
        -- A worker that has no such job goes on.
        'alone', (SELECT a.runs FROM (SELECT bool_or(state::text = 'running') AS runs, array_agg(DISTINCT coalesce(worker, '')) AS have
                FROM job WHERE queue = v_queue.id AND suspect AND (state::text = 'running' OR alone_until > v_now)) a
            WHERE NOT EXISTS (SELECT FROM worker w WHERE w.queue = v_queue.id AND NOT w.stopping AND w.seen > v_now - v_queue.lease
                AND coalesce(w.name, '') <> ALL (a.have))),
        'full', v_peek.is_full,
        'full_until', CASE WHEN v_all.rate_count IS NOT NULL AND (v_all.at_once IS NULL OR v_runs.running < v_all.at_once)
            THEN v_peek.next END,
        'held_by', v_tally.held_by, 'held', v_tally.held, 'held_until', v_token,
        'set_back_by', v_queue.set_back_by, 'set_back_for', v_now - v_queue.set_back_at,
        'lease', v_queue.lease, 'lapsed', v_how.lapsed, 'lapsed_for', CASE WHEN v_how.lapsed > 0 THEN v_now - greatest(v_how.lapsed_at, 0) END, 'usual', v_how.usual,
        'running', v_runs.running, 'oldest_running', v_runs.id, 'oldest_running_ran', v_runs.ran);
END $$;

-- The limits that are set, and those of keys with jobs that run or are held, for up to 64 keys of each. It counts up
-- to 10,000 held jobs, or up to 100 of each limit.
CREATE FUNCTION limits_used(p_queue text) RETURNS TABLE (name text, at_once bigint, rate_count bigint, rate_per_ns bigint,
    rate_burst bigint, running bigint, tokens float8, held bigint) LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 64;
    c_held CONSTANT int := 10000;
    v_queue queue := queue_of(p_queue);
    v_now bigint := clock();
BEGIN
    IF NOT v_queue.limited THEN RETURN; END IF;
    RETURN QUERY WITH RECURSIVE h(name, nth) AS (
            (SELECT j.held_by, 1 FROM job j WHERE j.queue = v_queue.id AND j.state = 'held' AND j.held_by IS NOT NULL ORDER BY j.held_by LIMIT 1)
            UNION ALL SELECT (SELECT j.held_by FROM job j WHERE j.queue = v_queue.id AND j.state = 'held' AND j.held_by > h.name
                ORDER BY j.held_by LIMIT 1), h.nth + 1 FROM h WHERE h.name IS NOT NULL AND h.nth < c_most),
        r(key, nth) AS (
            (SELECT j.key, 1 FROM job j WHERE j.queue = v_queue.id AND j.state = 'running' AND j.key IS NOT NULL ORDER BY j.key LIMIT 1)
            UNION ALL SELECT (SELECT j.key FROM job j WHERE j.queue = v_queue.id AND j.state = 'running' AND j.key > r.key
                ORDER BY j.key LIMIT 1), r.nth + 1 FROM r WHERE r.key IS NOT NULL AND r.nth < c_most),
        n AS (SELECT l.name FROM limits l WHERE l.queue = v_queue.id AND l.name NOT LIKE 'k%'
            UNION (SELECT l.name FROM limits l WHERE l.queue = v_queue.id AND l.name LIKE 'k%' ORDER BY l.name LIMIT c_most)
            UNION SELECT h.name FROM h WHERE h.name IS NOT NULL
            UNION SELECT 'k' || r.key FROM r WHERE r.key IS NOT NULL)
        SELECT n.name, b.at_once::bigint, b.rate_count::bigint, least(b.rate_per, 9223372036854775807)::bigint,
            b.rate_burst::bigint, CASE WHEN n.name = 'e' THEN 0 ELSE taken_of(v_queue.id, n.name) END,
            CASE WHEN b.rate_count IS NOT NULL AND n.name <> 'e'
                THEN (SELECT (x.level / x.unit)::float8 FROM bucket_of(bounds_of(v_queue.id, n.name), n.name, v_now) x) END,
            (SELECT count(*) FROM (SELECT FROM job j WHERE j.queue = v_queue.id AND j.state = 'held' AND j.held_by = n.name
                LIMIT (SELECT greatest(c_held / count(*), 100) FROM n)) c)
        FROM n, LATERAL bounds_of(v_queue.id, n.name) b WHERE b.name IS NOT NULL
        ORDER BY n.name <> 'q', n.name COLLATE "C";
END $$;

-- The jobs that a job waits for, or waited for when it died, and those that wait for it: up to this many of each.
CREATE FUNCTION related_to(p_queue text, p_id text, p_most bigint, OUT waits_for text[], OUT awaited_by text[]) LANGUAGE plpgsql AS $$
DECLARE v_queue int := (queue_of(p_queue)).id; v_number bigint := coalesce(number_of(v_queue, p_id), ended_of(v_queue, p_id));
BEGIN
    waits_for := ARRAY(SELECT coalesce(id_of(j.name, j.number), id_of_gone(e.awaited))
        FROM edge e LEFT JOIN job j ON j.number = e.awaited WHERE e.job = v_number ORDER BY e.awaited LIMIT p_most)
        || ARRAY(SELECT w FROM ended e, unnest(e.waited_for) w WHERE e.number = v_number LIMIT p_most);
    awaited_by := ARRAY(SELECT id_of(j.name, j.number)
        FROM edge e JOIN job j ON j.number = e.job WHERE e.awaited = v_number ORDER BY e.job LIMIT p_most);
END $$;

-- The jobs of these ids as their waiters see them. A job that is gone has no row.
CREATE FUNCTION states_of(p_queue text, p_ids text[])
RETURNS TABLE (id text, state text, data text, error text, fraction float8, note text, noted bigint) LANGUAGE plpgsql AS $$
DECLARE v_queue int := (queue_of(p_queue)).id;
BEGIN
    RETURN QUERY SELECT n.id, j.state, j.data, j.error, j.fraction, j.note, j.noted
        FROM (SELECT i AS id, any_of(v_queue, i) AS number FROM unnest(p_ids) i OFFSET 0) n,
        LATERAL (SELECT * FROM jobs s WHERE s.number = n.number LIMIT 1) j;
END $$;

-- The version of this schema, and the oldest version of a program that it serves.
CREATE FUNCTION schema_version(OUT version bigint, OUT serves bigint) LANGUAGE sql AS
$$ SELECT v.version, coalesce(v.serves, v.version) FROM version v ORDER BY v.version DESC LIMIT 1 $$;

CREATE FUNCTION queues() RETURNS SETOF text LANGUAGE sql AS $$ SELECT q.name FROM queue q ORDER BY q.name $$;

-- What a worker may wait for. `p_about`: the worker is noted, too (`note_workers`).
CREATE FUNCTION peek_now(p_queue text, p_worker text DEFAULT NULL, p_kinds text[] DEFAULT NULL, p_about text DEFAULT NULL)
RETURNS answer LANGUAGE plpgsql AS $$
BEGIN
    IF p_about IS NOT NULL THEN PERFORM note_workers(p_about); END IF;
    RETURN peek_answer(queue_of(p_queue), p_worker, p_kinds, clock());
END $$;

CREATE FUNCTION notes_of(p_queue text, p_prefix text, p_behind text DEFAULT NULL, p_most bigint DEFAULT 100)
RETURNS TABLE (place text, value text, until bigint) LANGUAGE sql AS
$$ SELECT n.place, n.value, n.until FROM note n WHERE n.queue = (queue_of(p_queue)).id AND left(n.place, length(p_prefix)) = p_prefix
    AND n.place >= p_prefix AND (p_behind IS NULL OR n.place > p_behind COLLATE "C") AND (n.until = 0 OR n.until > clock())
    ORDER BY n.place LIMIT p_most $$;

CREATE FUNCTION periodics_of(p_queue text)
RETURNS TABLE (name text, last bigint, run text, skipped bigint, schedule text, next bigint, damaged text) LANGUAGE sql AS
$$ SELECT p.name, p.last, p.run, p.skipped, p.schedule, coalesce(bounded(p.last) + bounded(p.every), p.next), NULL FROM periodic p
    WHERE p.queue = (queue_of(p_queue)).id
    UNION ALL SELECT d.id, 0, NULL, 0, NULL, NULL, d.reason FROM damaged d WHERE d.queue = (queue_of(p_queue)).id AND d.was = 'periodic'
    ORDER BY name $$;

CREATE FUNCTION averages_of(p_queue text) RETURNS TABLE (kind text, count bigint, mean bigint, last bigint) LANGUAGE sql AS
$$ SELECT a.kind, a.count, a.mean, a.last FROM average a WHERE a.queue = (queue_of(p_queue)).id $$;

-- The channel on which pushes ring for a caller whose last claim found nothing and had `p_listen`.
CREATE FUNCTION listen_to(p_queue text) RETURNS text LANGUAGE sql AS $$ SELECT channel_of((queue_of(p_queue)).id) $$;
