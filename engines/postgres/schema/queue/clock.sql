-- A clock that was set back, and the times that go back with it. The rule is that of `rules/set_back.rs`, and a test
-- compares the two: what was written at a time that is ahead goes back as far as the clock, so that what had a minute
-- left still has a minute left. A time that the user named stays.

-- Notes the time, once a second.
CREATE FUNCTION note_time(p_seen regclass, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF pg_sequence_last_value(p_seen) < p_now - 1000 THEN PERFORM setval(p_seen, p_now); END IF;
END $$;

-- Whether the clock was set back since the latest time that was seen. Smaller steps are corrections, and transactions
-- do not commit in the order in which they read the clock.
CREATE FUNCTION was_set_back(p_queue queue, p_now bigint) RETURNS boolean LANGUAGE sql AS
$$ SELECT pg_sequence_last_value(p_queue.seen) > p_now + 1000 $$;

-- How many milliseconds a time written then goes back, if the clock went back this far.
CREATE FUNCTION shift_of(p_written bigint, p_now bigint, p_by bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN p_written > p_now THEN greatest(p_by, p_written - p_now) ELSE 0 END $$;

-- The last tick of an interval as it counts now.
CREATE FUNCTION last_tick(p_last bigint, p_now bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN p_last > p_now + 1000 THEN p_now ELSE p_last END $$;

-- The jobs with times that are ahead. Each of them is due, or has a lease, until a time in the future.
CREATE FUNCTION ahead_jobs(p_queue int, p_now bigint) RETURNS SETOF bigint LANGUAGE sql STABLE AS
$$ SELECT r.number FROM unnest('{0,1,2,3}'::int[]) p(n), LATERAL (SELECT j.number FROM job j
        WHERE j.queue = p_queue AND j.state = 'ready' AND j.priority = p.n AND j.at > p_now AND j.since > p_now) r
    UNION ALL SELECT j.number FROM job j WHERE j.queue = p_queue AND j.state IN ('held', 'waiting') AND j.at > p_now AND j.since > p_now
    UNION ALL SELECT j.number FROM job j WHERE j.queue = p_queue AND j.state = 'running' AND j.at > p_now
        AND greatest(j.since, j.renewed, j.resubmitted) > p_now $$;

CREATE FUNCTION ahead_ended(p_queue int, p_now bigint) RETURNS SETOF bigint LANGUAGE sql STABLE AS
$$ SELECT e.number FROM ended e WHERE e.queue = p_queue AND e.died = false AND e.gone_at > p_now AND e.since > p_now
    UNION ALL SELECT e.number FROM ended e WHERE e.queue = p_queue AND e.died AND e.gone_at > p_now AND e.since > p_now $$;

-- Moves what is ahead of a clock that was set back this far. The registers keep the later time until there is nothing
-- left to move, and so each call ticks: what a rollback has undone, what is locked, and what is more than one call
-- takes is done by the next call.
CREATE FUNCTION set_clock_back(p_queue queue, p_now bigint, p_by bigint, OUT told answer[]) LANGUAGE plpgsql AS $$
DECLARE c_most CONSTANT int := 5000; v_until bigint; v_count bigint; v_is_all boolean := true;
BEGIN
    told := '{}';
    UPDATE job j SET at = CASE WHEN j.state = 'running' THEN j.at - shift_of(greatest(j.since, j.renewed), p_now, p_by)
            WHEN j.named THEN greatest(j.due, j.since - shift_of(j.since, p_now, p_by)) ELSE j.at - shift_of(j.since, p_now, p_by) END,
        due = CASE WHEN j.state = 'running' OR j.named OR j.due <= 0 THEN j.due ELSE j.due - shift_of(j.since, p_now, p_by) END,
        since = j.since - shift_of(j.since, p_now, p_by), renewed = j.renewed - shift_of(j.renewed, p_now, p_by),
        resubmit = j.resubmit - shift_of(j.resubmitted, p_now, p_by), resubmitted = j.resubmitted - shift_of(j.resubmitted, p_now, p_by),
        expires = CASE WHEN j.expires > 0 THEN j.expires - shift_of(j.pushed, p_now, p_by) ELSE j.expires END, pushed = j.pushed - shift_of(j.pushed, p_now, p_by)
    WHERE j.number = ANY (ARRAY(SELECT a.number FROM job a
        WHERE a.number = ANY (ARRAY(SELECT ahead_jobs(p_queue.id, p_now) LIMIT c_most)) FOR UPDATE SKIP LOCKED));
    UPDATE ended e SET gone_at = e.gone_at - shift_of(e.since, p_now, p_by), since = e.since - shift_of(e.since, p_now, p_by),
        expires = CASE WHEN e.expires > 0 THEN e.expires - shift_of(e.pushed, p_now, p_by) ELSE e.expires END, pushed = e.pushed - shift_of(e.pushed, p_now, p_by)
    WHERE e.number = ANY (ARRAY(SELECT a.number FROM ended a
        WHERE a.number = ANY (ARRAY(SELECT ahead_ended(p_queue.id, p_now) LIMIT c_most)) FOR UPDATE SKIP LOCKED));
    UPDATE mark SET until = until - shift_of(since, p_now, p_by), since = since - shift_of(since, p_now, p_by)
    WHERE queue = p_queue.id AND fingerprint = ANY (ARRAY(SELECT fingerprint FROM mark
        WHERE queue = p_queue.id AND until > p_now AND since > p_now LIMIT c_most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_is_all := v_is_all AND v_count < c_most;
    UPDATE gone SET until = until - shift_of(since, p_now, p_by), since = since - shift_of(since, p_now, p_by)
    WHERE queue = p_queue.id AND name = ANY (ARRAY(SELECT name FROM gone
        WHERE queue = p_queue.id AND until > p_now AND since > p_now LIMIT c_most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_is_all := v_is_all AND v_count < c_most;
    UPDATE note SET until = until - shift_of(since, p_now, p_by), since = since - shift_of(since, p_now, p_by)
    WHERE queue = p_queue.id AND place = ANY (ARRAY(SELECT place FROM note
        WHERE queue = p_queue.id AND until > p_now AND since > p_now LIMIT c_most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_is_all := v_is_all AND v_count < c_most;
    -- These last for a day, and for 28.
    UPDATE executed SET until = until - shift_of(until - 86400000, p_now, p_by) WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM executed WHERE queue = p_queue.id AND until > p_now + 86400000 LIMIT c_most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_is_all := v_is_all AND v_count < c_most;
    UPDATE root SET until = until - shift_of(until - 2419200000, p_now, p_by) WHERE queue = p_queue.id AND signature = ANY (ARRAY(
        SELECT signature FROM root WHERE queue = p_queue.id AND until > p_now + 2419200000 LIMIT c_most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_is_all := v_is_all AND v_count < c_most;
    UPDATE periodic SET last = last_tick(last, p_now) WHERE queue = p_queue.id AND name = ANY (ARRAY(SELECT name FROM periodic
        WHERE queue = p_queue.id AND every IS NOT NULL AND last > p_now + 1000 LIMIT c_most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_is_all := v_is_all AND v_count < c_most;
    UPDATE bucket SET since = p_now WHERE queue = p_queue.id AND name = ANY (ARRAY(SELECT name FROM bucket
        WHERE queue = p_queue.id AND since > p_now LIMIT c_most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_is_all := v_is_all AND v_count < c_most;
    UPDATE freed SET at = p_now WHERE id = ANY (ARRAY(SELECT id FROM freed
        WHERE queue = p_queue.id AND at > p_now LIMIT c_most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_is_all := v_is_all AND v_count < c_most;
    UPDATE worker SET seen = seen - shift_of(seen, p_now, p_by), began = began - shift_of(began, p_now, p_by)
    WHERE queue = p_queue.id AND number = ANY (ARRAY(SELECT number FROM worker
        WHERE queue = p_queue.id AND seen > p_now LIMIT c_most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_is_all := v_is_all AND v_count < c_most;
    UPDATE queue SET paused_since = paused_since - shift_of(paused_since, p_now, p_by),
        paused_until = CASE WHEN paused_until = 9223372036854775807 THEN paused_until
            ELSE paused_until - shift_of(paused_since, p_now, p_by) END
    WHERE id = (SELECT id FROM queue WHERE id = p_queue.id AND paused_since > p_now FOR UPDATE SKIP LOCKED)
    RETURNING paused_until INTO v_until;
    IF FOUND THEN told := told || paused_answer(v_until); END IF;
    IF v_is_all AND NOT EXISTS (SELECT ahead_jobs(p_queue.id, p_now)) AND NOT EXISTS (SELECT ahead_ended(p_queue.id, p_now))
        AND NOT EXISTS (SELECT FROM periodic WHERE queue = p_queue.id AND every IS NOT NULL AND last > p_now + 1000) THEN
        PERFORM setval(p_queue.ticked, p_now), setval(p_queue.seen, p_now);
        UPDATE queue SET set_back_at = p_now, set_back_by = p_by
        WHERE id = (SELECT id FROM queue WHERE id = p_queue.id FOR UPDATE SKIP LOCKED);
        told := told || line('set_back', NULL, NULL, 0, p_by::text);
    ELSE
        PERFORM setval(p_queue.ticked, pg_sequence_last_value(p_queue.seen));
    END IF;
END $$;

-- An answer that says until when a queue is paused.
CREATE FUNCTION paused_answer(p_until bigint) RETURNS answer LANGUAGE sql AS
$$ SELECT ROW('paused', p_until, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL)::answer $$;
