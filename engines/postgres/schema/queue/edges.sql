-- Jobs that wait for others: the doorbells of those that have ended, and who answers them.

-- Rings for the jobs that wait for one that has ended, is gone, or is there again.
CREATE FUNCTION ring_edges(p_queue int, p_number bigint, p_died boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- A job whose edge is not committed yet has its own doorbell.
    IF pg_sequence_last_value('edge_bells') IS NULL THEN RETURN; END IF;
    IF EXISTS (SELECT FROM edge WHERE awaited = p_number) OR NOT is_read_committed() THEN
        INSERT INTO edge_bell (queue, awaited, died) VALUES (p_queue, p_number, p_died);
    END IF;
END $$;

-- Whether there may be doorbells to answer. Until a first job waits for another one, nothing is read.
CREATE FUNCTION has_edge_bells(p_queue int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF pg_sequence_last_value('edge_bells') IS NULL THEN RETURN false; END IF;
    RETURN EXISTS (SELECT FROM edge_bell WHERE queue = p_queue);
END $$;

-- Answers the doorbells of jobs that others wait for: for up to 1,024 edges, and for 20 ms. `more`: another call at
-- once would do more. It never waits for a lock. Many jobs may wait for one, so a bell knows how far it is, and goes
-- to the end of the line after each piece: the next calls go on, and each bell has its turn.
CREATE FUNCTION resolve(p_queue queue, p_now bigint, OUT told answer[], OUT more boolean) LANGUAGE plpgsql AS $$
DECLARE
    c_piece CONSTANT int := 64;
    -- However long it takes, it does this many.
    c_least CONSTANT int := 16;
    -- Equal bells that go away with a bell take less time than an edge.
    c_equals CONSTANT int := 8;
    v_until timestamptz := clock_timestamp() + interval '20 ms';
    v_left int := 1024;
    -- The bells that this call has put at the end of the line.
    v_seen bigint[] := '{}';
    v_bell edge_bell;
    v_others record;
    v_died boolean;
    v_jobs bigint[];
    v_piece record;
    v_told answer;
BEGIN
    told := '{}';
    more := false;
    IF NOT has_edge_bells(p_queue.id) THEN RETURN; END IF;
    -- A push of this transaction rings again (see `place`): its bell may be among those that go.
    PERFORM set_config('waterline.rung', '', true) WHERE current_setting('waterline.rung', true) <> '';
    LOOP
        more := v_left <= 0 OR v_left <= 1024 - c_least AND clock_timestamp() >= v_until;
        EXIT WHEN more;
        SELECT * INTO v_bell FROM edge_bell WHERE queue = p_queue.id AND id <> ALL (v_seen) ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        v_left := v_left - 1;
        v_jobs := '{}';
        -- Its equals ask for the same. One that has already begun starts again for them.
        WITH equals AS (DELETE FROM edge_bell WHERE id = ANY (ARRAY(SELECT id FROM edge_bell
            WHERE awaited = v_bell.awaited AND id <> v_bell.id ORDER BY id LIMIT 1024 FOR UPDATE SKIP LOCKED)) RETURNING died)
        SELECT bool_or(died) AS died, count(*) AS found INTO v_others FROM equals;
        v_bell.died := coalesce(v_bell.died, v_others.died);
        IF v_others.found > 0 AND v_bell.behind > 0 THEN v_bell.anew := 0; END IF;
        v_left := v_left - v_others.found / c_equals;
        -- If it lives and no other transaction ends it now, each later end sees the edges that there are. A job that
        -- is set aside rings when it is removed.
        PERFORM FROM job WHERE number = v_bell.awaited FOR KEY SHARE SKIP LOCKED;
        IF FOUND OR EXISTS (SELECT FROM damaged WHERE number = v_bell.awaited) THEN
            DELETE FROM edge_bell WHERE id = v_bell.id;
            CONTINUE;
        END IF;
        -- A push that is not committed may make it live again.
        SELECT died INTO v_died FROM ended WHERE number = v_bell.awaited FOR KEY SHARE SKIP LOCKED;
        IF EXISTS (SELECT FROM job WHERE number = v_bell.awaited)
            OR NOT FOUND AND EXISTS (SELECT FROM ended WHERE number = v_bell.awaited) THEN
            v_bell.anew := least(v_bell.anew, v_bell.behind);
        ELSE
            v_died := coalesce(v_died, v_bell.died, false);
            LOOP
                v_jobs := ARRAY(SELECT job FROM edge WHERE awaited = v_bell.awaited AND job > v_bell.behind
                    ORDER BY job LIMIT greatest(least(CASE WHEN v_left > 1024 - c_least THEN c_least ELSE c_piece END, v_left), 1));
                EXIT WHEN cardinality(v_jobs) = 0;
                v_piece := answer_well(p_queue, v_bell.awaited, v_died, v_jobs,
                    CASE WHEN v_left > 1024 - c_least THEN 'infinity' ELSE v_until END, p_now);
                FOREACH v_told IN ARRAY v_piece.told LOOP told := told || v_told; END LOOP;
                v_bell.behind := v_piece.upto;
                -- What is locked is tried again after all the others.
                v_bell.anew := least(v_bell.anew, v_piece.missed - 1);
                v_left := v_left - cardinality(v_jobs);
                EXIT WHEN v_left <= 0 OR v_left <= 1024 - c_least AND clock_timestamp() >= v_until;
            END LOOP;
        END IF;
        IF cardinality(v_jobs) = 0 AND v_bell.anew IS NULL THEN
            DELETE FROM edge_bell WHERE id = v_bell.id;
        ELSE
            UPDATE edge_bell SET id = nextval('edge_bells'), died = v_bell.died,
                behind = CASE WHEN cardinality(v_jobs) > 0 THEN v_bell.behind ELSE v_bell.anew END,
                anew = CASE WHEN cardinality(v_jobs) > 0 THEN v_bell.anew END WHERE id = v_bell.id RETURNING id INTO v_bell.id;
            v_seen := v_seen || v_bell.id;
        END IF;
    END LOOP;
END $$;

-- Like `answer_edges`. If that fails, it tells each job by itself, and sets aside those with damaged rows.
CREATE FUNCTION answer_well(p_queue queue, p_awaited bigint, p_died boolean, p_jobs bigint[], p_until timestamptz, p_now bigint,
    OUT upto bigint, OUT missed bigint, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE v_number bigint; v_one record;
BEGIN
    SELECT a.upto, a.missed, a.told INTO upto, missed, told FROM answer_edges(p_queue, p_awaited, p_died, p_jobs, p_until, p_now) a;
EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
    told := '{}';
    FOREACH v_number IN ARRAY p_jobs LOOP
        BEGIN
            v_one := answer_edges(p_queue, p_awaited, p_died, ARRAY[v_number], p_until, p_now);
            missed := least(missed, v_one.missed);
            told := told || v_one.told;
        EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
            told := told || set_aside(p_queue, v_number, SQLERRM, p_now);
        END;
        upto := v_number;
        EXIT WHEN clock_timestamp() >= p_until;
    END LOOP;
END $$;

-- Tells these jobs, in their order, that a job they wait for has ended: all of them, or those up to `upto`, if that
-- time has come. `missed` is the first one that is locked, or one of whose edges is locked.
CREATE FUNCTION answer_edges(p_queue queue, p_awaited bigint, p_died boolean, p_jobs bigint[], p_until timestamptz, p_now bigint,
    OUT upto bigint, OUT missed bigint, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE v_free bigint[]; v_mine bigint[]; v_die bigint[] := '{}'; v_rings boolean; v_number bigint; v_job job; v_told answer;
BEGIN
    told := '{}';
    -- The state is compared as text, so that no index of all waiting jobs is read.
    upto := p_jobs[cardinality(p_jobs)];
    v_free := ARRAY(SELECT j.number FROM job j WHERE j.number = ANY (p_jobs) ORDER BY j.number FOR UPDATE SKIP LOCKED);
    v_mine := ARRAY(SELECT e.job FROM edge e WHERE e.awaited = p_awaited AND e.job BETWEEN p_jobs[1] AND upto AND e.job = ANY (v_free)
        ORDER BY e.job FOR UPDATE SKIP LOCKED);
    IF cardinality(v_mine) < cardinality(p_jobs) THEN
        -- A job that is gone waits no more. If its edge is gone, it was answered, or waits for another job by now.
        -- (No `EXISTS`: see `lines_of`.)
        SELECT min(n) INTO missed FROM unnest(p_jobs) n WHERE n <> ALL (v_mine) AND (SELECT true FROM job j WHERE j.number = n)
            AND (SELECT true FROM edge e WHERE e.awaited = p_awaited AND e.job = n);
    END IF;
    IF p_died THEN
        v_die := ARRAY(SELECT j.number FROM job j WHERE j.number = ANY (v_mine) AND j.state::text = 'waiting' AND j.on_dead = 'die' ORDER BY j.number);
        v_mine := ARRAY(SELECT j.number FROM job j WHERE j.number = ANY (v_mine)
            AND (j.state::text <> 'waiting' OR j.on_dead NOT IN ('die', 'hold')) ORDER BY j.number);
    END IF;
    IF cardinality(v_mine) > 0 THEN
        DELETE FROM edge e WHERE e.awaited = p_awaited AND e.job BETWEEN p_jobs[1] AND upto AND e.job = ANY (v_mine);
        WITH ready AS (
            UPDATE job j SET pending = 0, state = 'ready', place = n.place, at = greatest(j.due, p_now),
                since = CASE WHEN j.due > p_now THEN j.since ELSE p_now END
            FROM (SELECT w.number, nextval('place') AS place FROM (SELECT x.number FROM job x
                WHERE x.number = ANY (v_mine) AND x.state::text = 'waiting' AND x.pending <= 1 ORDER BY x.number) w) n
            WHERE j.number = n.number RETURNING j.number, j.name, j.state, j.at)
        SELECT coalesce(array_agg(told(id_of(name, number), shown(state, at, p_now)) ORDER BY number), '{}'), bool_or(at <= p_now)
        INTO told, v_rings FROM ready;
        UPDATE job SET pending = pending - 1 WHERE number = ANY (v_mine) AND state::text = 'waiting';
        IF v_rings THEN PERFORM ring(p_queue.id, p_queue.bell); END IF;
    END IF;
    FOREACH v_number IN ARRAY v_die LOOP
        IF has_free_edges(v_number) THEN
            SELECT * INTO v_job FROM job WHERE number = v_number;
            FOREACH v_told IN ARRAY end_unrun(p_queue, v_job, died_with(id_of_gone(p_awaited)), NULL, p_now) LOOP told := told || v_told; END LOOP;
        ELSE
            missed := least(missed, v_number);
        END IF;
        IF clock_timestamp() >= p_until THEN
            upto := v_number;
            EXIT;
        END IF;
    END LOOP;
END $$;

-- Whether no edge of this job is locked, so that its end waits for no lock.
CREATE FUNCTION has_free_edges(p_job bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE v_free int;
BEGIN
    PERFORM FROM edge WHERE job = p_job FOR UPDATE SKIP LOCKED;
    GET DIAGNOSTICS v_free = ROW_COUNT;
    RETURN v_free = (SELECT count(*) FROM edge WHERE job = p_job);
END $$;

CREATE FUNCTION died_with(p_id text) RETURNS text LANGUAGE sql AS
$$ SELECT 'the job ' || to_json(p_id)::text || ' is dead, and this one was to run after it' $$;

CREATE FUNCTION id_of_gone(p_number bigint) RETURNS text LANGUAGE sql AS
$$ SELECT coalesce((SELECT id_of(name, number) FROM ended WHERE number = p_number), '~' || p_number) $$;
