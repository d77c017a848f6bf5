-- Claims: the jobs that may run now, in their order.

-- What few jobs have, for the worker that has claimed one.
CREATE FUNCTION more_of(p_key text, p_resubmit bigint, p_root text, p_root_at bigint, p_cost int, p_meta text, p_noted bigint)
RETURNS text LANGUAGE sql AS
$$ SELECT CASE WHEN coalesce(p_key, p_root, p_meta) IS NULL AND p_cost = 1 AND coalesce(p_resubmit, p_noted) IS NULL THEN NULL
    ELSE json_strip_nulls(json_build_object('key', p_key, 'resubmit', p_resubmit, 'root', p_root, 'root_at', p_root_at,
        'cost', nullif(p_cost, 1), 'meta', nullif(p_meta IS NOT NULL, false),
        'progress', nullif(p_noted IS NOT NULL, false)))::text END $$;

-- True if a claim has to look closely: a job is to run alone, or may be needless and is due by then.
-- (The state is compared as text, so that only the index of such jobs can answer.)
CREATE FUNCTION has_special(p_queue int, p_by bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM job WHERE queue = p_queue AND suspect)
        OR EXISTS (SELECT FROM job WHERE queue = p_queue AND NOT suspect AND at <= p_by AND state::text = 'ready'
            AND (root IS NOT NULL OR skips_from IS NOT NULL));
END $$;

-- Locks the first ready jobs in this order of priorities, but for those that the caller has, and returns their
-- numbers; none, if a claim has to look closely and `p_closely` does not say that it does. It begins to read at
-- the floors.
CREATE FUNCTION lock_ready(p_queue int, p_order int[], p_floors bigint[], p_deeper int, p_most int, p_kinds text[],
    p_due_by bigint, p_now bigint, p_but bigint[], p_closely boolean DEFAULT false) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(SELECT x.number FROM unnest(p_order) p(n), LATERAL (
            SELECT r.number FROM job r
            WHERE r.queue = p_queue AND r.state = 'ready' AND r.priority = p.n AND r.at <= p_now
                AND r.at >= p_floors[p.n + 1] - p_deeper
                AND (p_kinds IS NULL OR r.kind = ANY (p_kinds))
                AND (p_due_by IS NULL OR p_due_by >= p_now OR r.due <= p_due_by)
                AND (r.expires IS NULL OR r.expires > p_now)
                AND r.number <> ALL (p_but)
            ORDER BY r.at, r.place LIMIT p_most FOR UPDATE SKIP LOCKED) x
        -- The same as `has_special`, in sight of the same jobs.
        WHERE p_closely OR NOT EXISTS (SELECT FROM job s WHERE s.queue = p_queue AND s.suspect)
            AND NOT EXISTS (SELECT FROM job s WHERE s.queue = p_queue AND NOT s.suspect AND s.at <= p_now
                AND s.state::text = 'ready' AND (s.root IS NOT NULL OR s.skips_from IS NOT NULL))
        LIMIT p_most);
END $$;

-- Locks the jobs that a claim takes of a queue without limits, in their order.
CREATE FUNCTION lock_plain(p_queue queue, p_most int, p_kinds text[], p_due_by bigint, p_now bigint)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_turns bigint := coalesce(pg_sequence_last_value(p_queue.turns), 0);
    -- Each eighth job is taken from the lowest priority, so that none starves.
    v_low int := ((v_turns + p_most) / 8 - v_turns / 8)::int;
    v_floors bigint[] := floors_of(p_queue.floors);
    v_numbers bigint[] := '{}';
BEGIN
    IF p_most > v_low THEN
        v_numbers := lock_ready(p_queue.id, '{0,1,2,3}', v_floors, 0, p_most - v_low, p_kinds, p_due_by, p_now, '{}');
    END IF;
    IF cardinality(v_numbers) < p_most THEN
        -- Those of the lowest priority, and what the first look has left: 5 s deeper, where a late commit is.
        v_numbers := v_numbers || lock_ready(p_queue.id, CASE WHEN v_low > 0 THEN '{3,2,1,0}'::int[] ELSE '{0,1,2,3}' END,
            v_floors, 5000, p_most - cardinality(v_numbers), p_kinds, p_due_by, p_now, v_numbers);
    END IF;
    IF cardinality(v_numbers) = 1 THEN
        v_turns := nextval(p_queue.turns);
    ELSIF cardinality(v_numbers) > 1 THEN
        v_turns := setval(p_queue.turns, v_turns + cardinality(v_numbers));
    END IF;
    RETURN v_numbers;
END $$;

-- True if a job that waits is not to be run, and why: it has expired, or others made it needless.
CREATE FUNCTION needless(p_job job, p_now bigint, OUT error text, OUT skipped text) LANGUAGE plpgsql AS $$
BEGIN
    IF p_job.expires <= p_now THEN
        error := 'it expired: no worker had taken it in time';
    ELSIF p_job.root IS NOT NULL AND EXISTS (SELECT FROM root r WHERE r.queue = p_job.queue
        AND r.signature = p_job.root AND r.until > p_now AND r.at > p_job.root_at) THEN
        skipped := 'superseded';
    ELSIF p_job.skips_from IS NOT NULL AND p_job.failures = 0 AND p_job.crashes = 0 AND EXISTS (
        SELECT FROM executed e WHERE e.queue = p_job.queue AND e.fingerprint = p_job.fingerprint AND e.until > p_now
            AND e.place >= p_job.skips_from) THEN
        skipped := 'executed';
    END IF;
END $$;

-- Jobs that are not due yet, for a caller who takes those that are due by a time to come.
CREATE FUNCTION claim_early(p_queue queue, p_kinds text[], p_due_by bigint, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE job SET at = p_now WHERE number = ANY (ARRAY(
    SELECT x.number FROM unnest('{0,1,2,3}'::int[]) p(n), LATERAL (
        SELECT number, at, id_of(name, number) AS id FROM job
        WHERE queue = p_queue.id AND state = 'ready' AND priority = p.n AND at > p_now AND at <= p_due_by
            AND (p_kinds IS NULL OR kind = ANY (p_kinds))
        ORDER BY at, id_of(name, number) COLLATE "C" LIMIT 1 FOR UPDATE SKIP LOCKED) x
    ORDER BY x.at, x.id COLLATE "C" LIMIT 1));
END $$;

-- For every language: claims up to `p_most` jobs for `p_lease` milliseconds (null: as the queue says),
-- and does what time has brought. The attempt is `failures` + 1. A claim by this call is durable with
-- the transaction; `p_async` is for callers whose transaction is this call alone. `p_listen`: if there is
-- no job, the caller waits for so many milliseconds for the channel of `listen_to`, and then claims again.
CREATE FUNCTION claim(p_queue text, p_most int DEFAULT 1, p_worker text DEFAULT NULL, p_kinds text[] DEFAULT NULL,
    p_lease bigint DEFAULT NULL, p_async boolean DEFAULT false, p_listen bigint DEFAULT NULL)
RETURNS TABLE (job bigint, token bigint, id text, kind text, payload text, data text, failures int, crashes int, pushed bigint, more text)
LANGUAGE plpgsql AS $$
DECLARE v_before text := current_setting('synchronous_commit'); v_answers answer[];
BEGIN
    -- A claim that looked at many jobs, and found none that may run, looks at the next ones.
    FOR v_round IN 1 .. 64 LOOP
        v_answers := ARRAY(SELECT t FROM turn('{}', '{}', '{}', '{}', '{}', '{}', p_queue, p_most, p_kinds, NULL, p_lease,
            p_worker, false, p_listen, NULL) t);
        EXIT WHEN NOT EXISTS (SELECT FROM unnest(v_answers) a WHERE a.what = 'again');
    END LOOP;
    RETURN QUERY SELECT a.number, a.token, a.id, a.kind, a.payload, a.data, a.failures, a.crashes, a.pushed, a.more
        FROM unnest(v_answers) a WHERE a.what = 'claimed' ORDER BY a.priority, a.outcome::int;
    -- A turn that only claims has made the transaction of its caller asynchronous.
    IF NOT p_async THEN PERFORM set_config('synchronous_commit', v_before, true); END IF;
END $$;
