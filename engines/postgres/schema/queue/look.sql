-- Looks. They change nothing.

-- A job as it is shown. `place` is its place in the list of its state.
CREATE VIEW jobs AS
SELECT j.queue, j.number, j.name, id_of(j.name, j.number) AS id, shown(j.state, j.at, clock()) AS state,
    j.priority::int AS priority, CASE WHEN j.state IN ('ready', 'held') AND j.at > clock() THEN j.at ELSE j.place END AS place,
    j.kind, j.payload, j.data, j.meta, j.key, j.failures, j.crashes, j.pushed, j.due,
    CASE WHEN j.state IN ('ready', 'held') AND j.at <= clock() THEN greatest(j.since, j.at) ELSE j.since END AS since,
    j.resubmit, j.error, j.fraction, j.note, j.noted, j.root, j.root_at, j.is_root, j.expires, j.cost, j.held_by, j.pending,
    j.suspect, NULL::text AS skipped, NULL::bigint AS gone_at, j.worker, j.token
FROM job j
UNION ALL
SELECT e.queue, e.number, e.name, id_of(e.name, e.number), CASE WHEN e.died THEN 'dead' ELSE 'finished' END,
    e.priority::int, coalesce(e.gone_at, 9223372036854775807),
    e.kind, e.payload, e.data, e.meta, e.key, e.failures, e.crashes, e.pushed, e.due, e.since,
    e.resubmit, e.error, e.fraction, e.note, e.noted, e.root, e.root_at, e.is_root, e.expires, e.cost, NULL, 0,
    false, e.skipped, e.gone_at, NULL, NULL
FROM ended e;

-- A job with all that belongs to it.
CREATE FUNCTION get(p_queue text, p_id text) RETURNS SETOF jobs LANGUAGE plpgsql AS $$
DECLARE v_queue int := (queue_of(p_queue)).id; v_number bigint := number_of(v_queue, p_id);
BEGIN
    RETURN QUERY SELECT * FROM jobs WHERE number = coalesce(v_number, ended_of(v_queue, p_id)) LIMIT 1;
END $$;

-- Jobs of a state in their order, behind one with this priority, place and id.
CREATE FUNCTION list(p_queue text, p_state text, p_priority int DEFAULT NULL, p_place bigint DEFAULT NULL, p_id text DEFAULT NULL,
    p_most bigint DEFAULT 100) RETURNS SETOF jobs
LANGUAGE plpgsql AS $$
DECLARE v_queue int := (queue_of(p_queue)).id;
BEGIN
    RETURN QUERY SELECT j.* FROM jobs j WHERE j.queue = v_queue AND j.state = p_state
        AND (p_id IS NULL OR (CASE WHEN p_state = 'ready' THEN j.priority ELSE 0 END, j.place, j.id COLLATE "C")
            > (CASE WHEN p_state = 'ready' THEN p_priority ELSE 0 END, p_place, p_id COLLATE "C"))
        ORDER BY CASE WHEN p_state = 'ready' THEN j.priority ELSE 0 END, j.place, j.id COLLATE "C" LIMIT p_most;
END $$;

-- The jobs in each state.
CREATE FUNCTION counts(p_queue text) RETURNS TABLE (state text, count bigint) LANGUAGE plpgsql AS $$
DECLARE v_queue int := (queue_of(p_queue)).id;
BEGIN
    RETURN QUERY SELECT shown(j.state, j.at, clock()), count(*) FROM job j WHERE j.queue = v_queue GROUP BY 1
        UNION ALL SELECT CASE WHEN e.died THEN 'dead' ELSE 'finished' END, count(*) FROM ended e WHERE e.queue = v_queue GROUP BY 1;
END $$;

-- What the status of a queue is made from, beside its counts.
CREATE FUNCTION survey(p_queue text) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_queue queue := queue_of(p_queue);
    v_now bigint := clock();
    v_glance record := glance(v_queue, v_now);
    v_all limits := bounds_of(v_queue.id, 'q');
    v_held record;
    v_token bigint;
    v_oldest record;
    v_ready record;
BEGIN
    SELECT id, since INTO v_oldest FROM jobs WHERE queue = v_queue.id AND state = 'running' ORDER BY since, place LIMIT 1;
    SELECT id, since INTO v_ready FROM jobs WHERE queue = v_queue.id AND state = 'ready' ORDER BY since, place LIMIT 1;
    SELECT held_by AS name, count(*) AS count INTO v_held FROM job WHERE queue = v_queue.id AND state = 'held'
    GROUP BY held_by ORDER BY 2 DESC, 1 LIMIT 1;
    IF v_held.name IS NOT NULL AND (bounds_of(v_queue.id, v_held.name)).rate_count IS NOT NULL THEN
        SELECT nullif(greatest(tokens_at(bounds_of(v_queue.id, v_held.name), bucket_of(bounds_of(v_queue.id, v_held.name), v_held.name, v_now),
            (SELECT cost FROM job WHERE queue = v_queue.id AND state = 'held' AND held_by = v_held.name ORDER BY priority, at, place LIMIT 1)),
            v_now), v_now) INTO v_token;
    END IF;
    RETURN json_build_object('now', v_now, 'oldest_ready', v_ready.id, 'oldest_ready_since', v_ready.since,
        'only_held', NOT v_glance.ready,
        'due', v_glance.due, 'paused_until', nullif(greatest(v_queue.paused_until, v_now), v_now),
        'alone', CASE WHEN EXISTS (SELECT FROM job WHERE queue = v_queue.id AND suspect AND state = 'running') THEN true
            WHEN v_glance.is_full AND EXISTS (SELECT FROM job WHERE queue = v_queue.id AND suspect AND state = 'ready' AND at <= v_now) THEN false END,
        'full', v_glance.is_full,
        'full_until', CASE WHEN v_all.rate_count IS NOT NULL AND (v_all.at_once IS NULL OR taken_of(v_queue.id, 'q') < v_all.at_once)
            THEN v_glance.next END,
        'held_by', v_held.name, 'held', v_held.count, 'held_until', v_token,
        'running', taken_of(v_queue.id, 'q'), 'oldest_running', v_oldest.id, 'oldest_running_since', v_oldest.since);
END $$;

CREATE FUNCTION glance_now(p_queue text) RETURNS answer LANGUAGE sql AS
$$ SELECT glance_answer(queue_of(p_queue), clock()) $$;

CREATE FUNCTION notes_of(p_queue text, p_prefix text, p_behind text DEFAULT NULL, p_most bigint DEFAULT 100)
RETURNS TABLE (place text, value text, until bigint) LANGUAGE sql AS
$$ SELECT n.place, n.value, n.until FROM note n WHERE n.queue = (queue_of(p_queue)).id AND left(n.place, length(p_prefix)) = p_prefix
    AND n.place >= p_prefix AND (p_behind IS NULL OR n.place > p_behind COLLATE "C") AND (n.until = 0 OR n.until > clock())
    ORDER BY n.place LIMIT p_most $$;

CREATE FUNCTION periodics_of(p_queue text)
RETURNS TABLE (name text, last bigint, run text, skipped bigint, schedule text, next bigint) LANGUAGE sql AS
$$ SELECT p.name, p.last, p.run, p.skipped, p.schedule, p.last + p.every FROM periodic p
    WHERE p.queue = (queue_of(p_queue)).id ORDER BY p.name $$;

CREATE FUNCTION averages_of(p_queue text) RETURNS TABLE (kind text, count bigint, mean bigint, last bigint) LANGUAGE sql AS
$$ SELECT a.kind, a.count, a.mean, a.last FROM average a WHERE a.queue = (queue_of(p_queue)).id $$;

-- The channel on which pushes ring for a caller whose last claim found nothing and had `p_listen`.
CREATE FUNCTION listen_to(p_queue text) RETURNS text LANGUAGE sql AS $$ SELECT channel_of((queue_of(p_queue)).id) $$;
