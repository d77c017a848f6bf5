-- The end of a whole queue.

-- Removes a queue with all that belongs to it, piece by piece: it is called until `more` is false. `p_dry`: only
-- returns how much there is. The first piece renames the queue, so callers that have it open are told that there is
-- none (`WQ001`). It is refused while a worker was heard of within a lease: claims tick, and leases end.
CREATE FUNCTION remove_queue(p_queue text, p_dry boolean DEFAULT false, OUT jobs bigint, OUT more boolean) LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 10000;
    v_queue queue;
    v_now bigint := clock();
    v_heard bigint;
    v_table text;
    v_count bigint;
    v_rest bigint := c_most;
    v_sequence regclass;
BEGIN
    jobs := 0;
    more := false;
    -- A piece that has begun goes on under its old name.
    SELECT * INTO v_queue FROM queue WHERE name IN (p_queue, removed_name(p_queue)) ORDER BY name = p_queue LIMIT 1 FOR UPDATE;
    IF NOT FOUND THEN v_queue := queue_of(p_queue); END IF;
    IF v_queue.name = p_queue THEN
        v_heard := greatest(pg_sequence_last_value(v_queue.ticked),
            (SELECT max(least(j.at, v_now)) FROM job j WHERE j.queue = v_queue.id AND j.state = 'running'));
        -- A tick that has more to do has no time: then it is that of the latest time that was seen.
        IF v_heard = 0 THEN v_heard := pg_sequence_last_value(v_queue.seen); END IF;
        IF v_now - v_heard < v_queue.lease THEN
            RAISE 'waterline: the queue "%" has workers: one was heard of % ago', p_queue, shown_time(greatest(v_now - v_heard, 0))
                USING ERRCODE = 'WQ011', DETAIL = p_queue,
                HINT = format('Stop them, and call it again when none was heard of for %s.', shown_time(v_queue.lease));
        END IF;
    END IF;
    IF p_dry THEN
        SELECT sum(n) INTO jobs FROM (SELECT count(*) FROM job WHERE queue = v_queue.id
            UNION ALL SELECT count(*) FROM ended WHERE queue = v_queue.id
            UNION ALL SELECT count(*) FROM damaged WHERE queue = v_queue.id AND was = 'job') c(n);
        RETURN;
    END IF;
    UPDATE queue SET name = removed_name(p_queue), paused_until = 9223372036854775807 WHERE id = v_queue.id AND name = p_queue;
    FOREACH v_table IN ARRAY '{edge,job,ended,damaged,edge_bell,freed,mark,executed,root,gone,note,average,periodic,limits,bucket,tally,worker}'::text[] LOOP
        IF v_table = 'edge' THEN
            -- Jobs of one queue wait for each other.
            DELETE FROM edge WHERE ctid = ANY (ARRAY(SELECT e.ctid FROM edge e JOIN job j ON j.number = e.job
                WHERE j.queue = v_queue.id LIMIT v_rest));
        ELSE
            EXECUTE format('DELETE FROM %I WHERE ctid = ANY (ARRAY(SELECT ctid FROM %I WHERE queue = $1 LIMIT $2))', v_table, v_table)
                USING v_queue.id, v_rest;
        END IF;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_rest := v_rest - v_count;
        IF v_table IN ('job', 'ended', 'damaged') THEN jobs := jobs + v_count; END IF;
        more := v_rest <= 0;
        EXIT WHEN more;
    END LOOP;
    IF more THEN RETURN; END IF;
    DELETE FROM queue WHERE id = v_queue.id;
    FOREACH v_sequence IN ARRAY ARRAY[v_queue.bell, v_queue.ticked, v_queue.seen, v_queue.turns, v_queue.waiting] || v_queue.floors LOOP
        EXECUTE 'DROP SEQUENCE ' || v_sequence;
    END LOOP;
END $$;

-- The name of a queue that is being removed. A name has 255 bytes at most.
CREATE FUNCTION removed_name(p_queue text) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT 'removed ' || left(p_queue, 50) || ' ' || left(md5(p_queue), 8) $$;
