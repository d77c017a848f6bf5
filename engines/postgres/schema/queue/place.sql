-- The place of a pushed job: a row of its own, or that of an old job, which is moved.

-- Puts a job into its place, perhaps that of an old one, which the caller has locked. False: a job of the same id, or
-- a twin, was faster, and nothing has changed.
CREATE FUNCTION place_job(p_queue queue, p_job job, p_old job, p_awaited bigint[], p_died text, p_within bigint, p_now bigint,
    OUT placed boolean, OUT state text, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE v_id text := id_of(p_job.name, p_job.number); v_old bigint;
BEGIN
    told := '{}';
    p_job.state := CASE WHEN cardinality(p_awaited) > 0 THEN 'waiting' ELSE 'ready' END;
    p_job.pending := cardinality(p_awaited);
    p_job.at := greatest(p_job.due, p_now);
    IF p_job.skips_from IS NOT NULL THEN p_job.skips_from := p_job.place; END IF;
    IF p_old.number IS NULL THEN
        INSERT INTO job SELECT p_job.* ON CONFLICT DO NOTHING;
        placed := FOUND;
        IF placed AND NOT take_mark(p_job, p_within, p_now) THEN
            DELETE FROM job WHERE number = p_job.number;
            placed := false;
        END IF;
    ELSIF p_within IS NULL AND coalesce(p_job.uniq = p_old.uniq, p_job.uniq IS NULL) THEN
        -- No other job can be in its way.
        PERFORM move_job(p_job, p_old);
        placed := true;
    ELSE
        BEGIN
            PERFORM move_job(p_job, p_old);
            IF NOT take_mark(p_job, p_within, p_now) THEN RAISE unique_violation; END IF;
            placed := true;
        EXCEPTION WHEN unique_violation THEN
            placed := false;
        END;
    END IF;
    IF NOT placed THEN RETURN; END IF;
    IF p_old.number IS NULL THEN PERFORM note_waiting(p_queue); END IF;
    IF p_job.name IS NOT NULL THEN
        -- It takes the place of one that has ended or was set aside, also for those that wait for that. (A query
        -- before the insert would not see one that ends meanwhile.)
        DELETE FROM gone WHERE queue = p_queue.id AND name = p_job.name;
        FOR v_old IN WITH e AS (DELETE FROM ended e WHERE e.queue = p_queue.id AND e.name = p_job.name RETURNING e.number),
                d AS (DELETE FROM damaged d WHERE d.queue = p_queue.id AND d.was = 'job' AND d.id = p_job.name RETURNING d.number)
            SELECT number FROM e UNION ALL SELECT number FROM d
        LOOP
            IF p_old.number IS NULL AND EXISTS (SELECT FROM edge WHERE awaited = v_old) THEN
                -- It takes the number, since many may wait.
                UPDATE edge SET awaited = v_old WHERE awaited = p_job.number;
                UPDATE job SET number = v_old WHERE number = p_job.number;
                p_job.number := v_old;
            ELSE
                UPDATE edge SET awaited = p_job.number WHERE awaited = v_old;
            END IF;
            told := told || told(v_id, NULL, p_outcome => 'anew');
        END LOOP;
    END IF;
    IF p_job.is_root THEN
        INSERT INTO root AS r VALUES (p_queue.id, p_job.root, p_now + 2419200000, p_job.root_at)
        ON CONFLICT (queue, signature) DO UPDATE SET until = excluded.until, at = excluded.at
            WHERE r.at <= excluded.at OR r.until <= p_now;
    END IF;
    IF p_job.pending > 0 THEN
        INSERT INTO edge SELECT n, p_job.number FROM unnest(p_awaited) n;
        -- One of them may end, or have ended, without seeing this transaction. One that dies now waits no more. A
        -- bell is heard after the commit, so one is enough for all that this transaction pushes one after the other.
        IF p_died IS NULL AND current_setting('waterline.rung', true) IS DISTINCT FROM p_queue.bell::oid || p_awaited::text THEN
            INSERT INTO edge_bell (queue, awaited) SELECT p_queue.id, n FROM unnest(p_awaited) n;
            PERFORM set_config('waterline.rung', p_queue.bell::oid || p_awaited::text, true);
        END IF;
    END IF;
    IF p_died IS NOT NULL THEN
        told := told || told(v_id, 'ready') || end_unrun(p_queue, p_job, died_with(p_died), NULL, p_now);
        state := 'dead';
        RETURN;
    END IF;
    state := shown(p_job.state, p_job.at, p_now);
END $$;

-- Notes that one more job waits.
CREATE FUNCTION note_waiting(p_queue queue) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_queue.max_waiting IS NOT NULL THEN PERFORM nextval(p_queue.waiting); END IF;
END $$;

-- Changes an old job into this one: by an update, so that transactions that wait for the row go on with the new one.
CREATE FUNCTION move_job(p_job job, p_old job) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE job SET state = p_job.state, priority = p_job.priority, at = p_job.at, place = p_job.place,
        token = p_job.token, kind = p_job.kind, payload = p_job.payload, name = p_job.name, key = p_job.key,
        failures = p_job.failures, crashes = p_job.crashes, pushed = p_job.pushed, due = p_job.due,
        named = p_job.named, since = p_job.since, resubmit = p_job.resubmit, resubmitted = p_job.resubmitted, error = p_job.error, data = p_job.data, meta = p_job.meta,
        fraction = p_job.fraction, note = p_job.note, noted = p_job.noted, retry = p_job.retry,
        retention = p_job.retention, uniq = p_job.uniq, uniq_until = p_job.uniq_until,
        fingerprint = p_job.fingerprint, skips_from = p_job.skips_from, root = p_job.root,
        root_at = p_job.root_at, is_root = p_job.is_root, expires = p_job.expires, cost = p_job.cost,
        held_by = p_job.held_by, pending = p_job.pending, on_dead = p_job.on_dead, counted = p_job.counted,
        silent = p_job.silent, stopping = p_job.stopping, suspect = p_job.suspect, worker = p_job.worker, alone_until = NULL
        WHERE number = p_old.number;
    DELETE FROM edge WHERE job = p_old.number;
    IF p_old.uniq_until = 'w' THEN
        DELETE FROM mark WHERE queue = p_old.queue AND fingerprint = p_old.fingerprint
            AND job = id_of(p_old.name, p_old.number);
    END IF;
END $$;

-- Makes a job unique for this long (null: it is not to be unique). False: another job is unique by its fingerprint.
CREATE FUNCTION take_mark(p_job job, p_within bigint, p_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF p_within IS NULL THEN RETURN true; END IF;
    INSERT INTO mark AS m VALUES (p_job.queue, p_job.fingerprint, p_now + p_within, id_of(p_job.name, p_job.number), p_now)
    ON CONFLICT (queue, fingerprint) DO UPDATE SET until = excluded.until, job = excluded.job, since = excluded.since
        WHERE m.until <= p_now;
    RETURN FOUND;
END $$;

-- The new job as the old one in another place: its failures stay.
CREATE FUNCTION moved(p_old job, p_new job) RETURNS job LANGUAGE plpgsql AS $$
BEGIN
    p_new.number := p_old.number;
    p_new.place := nextval('place');
    p_new.failures := p_old.failures;
    p_new.crashes := p_old.crashes;
    p_new.error := p_old.error;
    p_new.suspect := p_old.suspect;
    RETURN p_new;
END $$;
