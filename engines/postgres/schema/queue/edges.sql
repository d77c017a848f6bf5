-- Jobs that wait for others: the doorbells of those that have ended, and who answers them.

-- Rings for those who wait for a job that has ended, is gone, or is there again.
CREATE FUNCTION ring_edges(p_queue int, p_number bigint, p_died boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- One whose edge is not committed yet has its own doorbell.
    IF pg_sequence_last_value('edge_bells') IS NULL THEN RETURN; END IF;
    IF EXISTS (SELECT FROM edge WHERE awaited = p_number) OR NOT is_read_committed() THEN
        INSERT INTO edge_bell (queue, awaited, died) VALUES (p_queue, p_number, p_died);
    END IF;
END $$;

-- True if somebody has to answer doorbells. As long as no job was to wait for another one, there is nothing to look at.
CREATE FUNCTION has_edge_bells(p_queue int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF pg_sequence_last_value('edge_bells') IS NULL THEN RETURN false; END IF;
    RETURN EXISTS (SELECT FROM edge_bell WHERE queue = p_queue);
END $$;

-- Answers the doorbells of jobs that others wait for. It never waits for a lock: what somebody has
-- locked is left for the next call.
CREATE FUNCTION resolve(p_queue queue, p_now bigint, p_most int DEFAULT 1024, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE
    v_bell edge_bell;
    v_edge edge;
    v_job job;
    v_died boolean;
    v_done boolean;
    v_last bigint := 0;
BEGIN
    told := '{}';
    IF NOT has_edge_bells(p_queue.id) THEN RETURN; END IF;
    FOR v_rounds IN 1 .. p_most LOOP
        SELECT * INTO v_bell FROM edge_bell WHERE queue = p_queue.id AND id > v_last
        ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        v_last := v_bell.id;
        -- If it lives and nobody ends it just now, each later end sees the edges that there are.
        PERFORM FROM job WHERE number = v_bell.awaited FOR KEY SHARE SKIP LOCKED;
        IF FOUND THEN
            DELETE FROM edge_bell WHERE id = v_bell.id;
            CONTINUE;
        END IF;
        CONTINUE WHEN EXISTS (SELECT FROM job WHERE number = v_bell.awaited);
        SELECT died INTO v_died FROM ended WHERE number = v_bell.awaited;
        v_died := coalesce(v_died, v_bell.died, false);
        v_done := true;
        FOR v_edge IN SELECT * FROM edge WHERE awaited = v_bell.awaited ORDER BY job LOOP
            SELECT * INTO v_job FROM job WHERE number = v_edge.job FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                -- It is locked, or it is gone.
                v_done := v_done AND NOT EXISTS (SELECT FROM job WHERE number = v_edge.job);
                CONTINUE;
            END IF;
            PERFORM FROM edge WHERE awaited = v_edge.awaited AND job = v_edge.job FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                -- Another one has answered another bell of this job since the loop began, or a push moves this edge.
                v_done := v_done AND NOT EXISTS (SELECT FROM edge WHERE awaited = v_edge.awaited AND job = v_edge.job);
            ELSIF v_job.state <> 'waiting' THEN
                DELETE FROM edge WHERE awaited = v_edge.awaited AND job = v_edge.job;
            ELSIF v_died AND v_job.on_dead = 'die' AND NOT has_free_edges(v_job.number) THEN
                v_done := false;
            ELSIF v_died AND v_job.on_dead = 'die' THEN
                told := told || end_unrun(p_queue, v_job, died_with(id_of_gone(v_bell.awaited)), NULL, p_now);
            ELSIF NOT (v_died AND v_job.on_dead = 'hold') THEN
                DELETE FROM edge WHERE awaited = v_edge.awaited AND job = v_edge.job;
                CONTINUE WHEN NOT FOUND;
                UPDATE job SET pending = pending - 1,
                    state = CASE WHEN pending > 1 THEN state ELSE 'ready' END,
                    place = CASE WHEN pending > 1 THEN place ELSE nextval('place') END,
                    at = CASE WHEN pending > 1 THEN at ELSE greatest(due, p_now) END,
                    since = CASE WHEN pending > 1 OR due > p_now THEN since ELSE p_now END
                WHERE number = v_job.number RETURNING * INTO v_job;
                IF v_job.state = 'ready' THEN
                    told := told || told(id_of(v_job.name, v_job.number), shown(v_job.state, v_job.at, p_now));
                    PERFORM ring(p_queue.id, p_queue.bell) WHERE v_job.at <= p_now;
                END IF;
            END IF;
        END LOOP;
        DELETE FROM edge_bell WHERE v_done AND id = v_bell.id;
    END LOOP;
END $$;

-- True if nobody has locked an edge of this job, so that its end waits for no lock.
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
