-- Limits: how many jobs of a key, a kind or a queue run at once, and the tokens of rates.

-- The bounds of a limit: that of its name, or of each key.
CREATE FUNCTION bounds_of(p_queue int, p_name text) RETURNS limits LANGUAGE plpgsql AS $$
DECLARE v_limit limits;
BEGIN
    SELECT * INTO v_limit FROM limits WHERE queue = p_queue AND name = p_name;
    IF NOT FOUND AND left(p_name, 1) = 'k' THEN
        SELECT * INTO v_limit FROM limits WHERE queue = p_queue AND name = 'e';
    END IF;
    RETURN v_limit;
END $$;

-- The jobs that take a place in a limit.
CREATE FUNCTION taken_of(p_queue int, p_name text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE v_taken bigint;
BEGIN
    CASE left(p_name, 1)
    WHEN 'k' THEN
        SELECT count(*) INTO v_taken FROM job WHERE queue = p_queue AND state = 'running' AND key = substr(p_name, 2);
    WHEN 't' THEN
        SELECT count(*) INTO v_taken FROM job
        WHERE queue = p_queue AND state = 'running' AND counted AND kind = substr(p_name, 2);
    ELSE
        SELECT count(*) INTO v_taken FROM job WHERE queue = p_queue AND state = 'running';
    END CASE;
    RETURN v_taken;
END $$;

-- The tokens of a rate as they are now, in parts.
CREATE FUNCTION bucket_of(p_limit limits, p_name text, p_now bigint) RETURNS bucket LANGUAGE plpgsql AS $$
DECLARE v_bucket bucket;
BEGIN
    SELECT * INTO v_bucket FROM bucket WHERE queue = p_limit.queue AND name = p_name;
    IF NOT FOUND THEN
        v_bucket := (p_limit.queue, p_name, p_limit.rate_burst * p_limit.rate_per, p_limit.rate_per, p_now);
    END IF;
    IF v_bucket.unit <> p_limit.rate_per THEN
        -- The rate has changed since. Whole tokens stay.
        v_bucket.level := floor(v_bucket.level / v_bucket.unit) * p_limit.rate_per;
        v_bucket.unit := p_limit.rate_per;
    END IF;
    -- After a jump back of the clock, tokens are counted from that time on.
    v_bucket.level := least(v_bucket.level + greatest(p_now - v_bucket.since, 0) * p_limit.rate_count * 1000000::numeric,
        p_limit.rate_burst * p_limit.rate_per + p_limit.rate_count * 1000000::numeric - 1);
    v_bucket.since := p_now;
    RETURN v_bucket;
END $$;

-- When a rate has the tokens for a job of this cost. One above a full bucket needs a full one, and leaves a debt.
CREATE FUNCTION tokens_at(p_limit limits, p_bucket bucket, p_cost int) RETURNS bigint LANGUAGE sql AS
$$ SELECT p_bucket.since + least(ceil(greatest(least(p_cost, p_limit.rate_burst) * p_limit.rate_per - p_bucket.level, 0)
    / (p_limit.rate_count * 1000000::numeric)), 1::bigint << 55)::bigint $$;

CREATE FUNCTION take_tokens(p_bucket bucket, p_cost int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO bucket AS b VALUES (p_bucket.queue, p_bucket.name, p_bucket.level - p_cost * p_bucket.unit, p_bucket.unit, p_bucket.since)
    ON CONFLICT (queue, name) DO UPDATE SET level = excluded.level, unit = excluded.unit, since = excluded.since;
END $$;

-- Rings for the held jobs of a limit, except for these: now if one may begin, or when there are the tokens for the
-- first of them. If the limit is full, the end of a job rings.
CREATE FUNCTION ring_later(p_queue int, p_name text, p_but bigint[], p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_limit limits := bounds_of(p_queue, p_name); v_cost int; v_at bigint := p_now;
BEGIN
    IF v_limit.at_once IS NOT NULL AND taken_of(p_queue, p_name) >= v_limit.at_once THEN RETURN; END IF;
    SELECT x.cost INTO v_cost FROM unnest('{0,1,2,3}'::int[]) p(n), LATERAL (
        SELECT cost FROM job WHERE queue = p_queue AND state = 'held' AND held_by = p_name AND priority = p.n
            AND number <> ALL (p_but)
        ORDER BY at, place LIMIT 1) x LIMIT 1;
    IF v_cost IS NULL THEN RETURN; END IF;
    IF v_limit.rate_count IS NOT NULL THEN
        v_at := greatest(p_now, tokens_at(v_limit, bucket_of(v_limit, p_name, p_now), v_cost));
    END IF;
    INSERT INTO freed (queue, at, name) VALUES (p_queue, v_at, p_name);
END $$;

-- The first limit that holds a job. Jobs in the lines of their kinds stand between two ranges of the index, and each
-- range is read by a query of its own, since the planner would otherwise read all held jobs.
CREATE FUNCTION first_held(p_queue int) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((SELECT held_by FROM job WHERE queue = p_queue AND state = 'held' AND held_by < 'o' ORDER BY held_by LIMIT 1),
        (SELECT held_by FROM job WHERE queue = p_queue AND state = 'held' AND held_by >= 'p' ORDER BY held_by LIMIT 1));
END $$;

-- Makes ready some of the jobs held by limits that have changed. True: there may be more. Then claims have to begin
-- further back, since the jobs are in their old places.
CREATE FUNCTION release_held(p_queue queue) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 1024;
    v_count int;
    v_numbers bigint[] := ARRAY(SELECT number FROM job WHERE queue = p_queue.id AND state = 'held' AND held_by < 'o'
        ORDER BY held_by LIMIT c_most FOR UPDATE SKIP LOCKED);
BEGIN
    v_numbers := v_numbers || ARRAY(SELECT number FROM job WHERE queue = p_queue.id AND state = 'held' AND held_by >= 'p'
        ORDER BY held_by LIMIT c_most - cardinality(v_numbers) FOR UPDATE SKIP LOCKED);
    UPDATE job SET state = 'ready', held_by = NULL WHERE number = ANY (v_numbers);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    PERFORM setval(f, 0) FROM unnest(p_queue.floors[1:9]) f WHERE v_count > 0;
    RETURN v_count = c_most;
END $$;

-- Makes the held jobs of a queue ready that has no limits any more, piece by piece. True: there may be more.
CREATE FUNCTION end_limits(p_queue queue, p_until timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    WHILE release_held(p_queue) LOOP
        IF clock_timestamp() >= p_until THEN RETURN true; END IF;
    END LOOP;
    UPDATE queue SET limited = false WHERE id = (SELECT id FROM queue WHERE id = p_queue.id AND limit_sorts = '' FOR UPDATE SKIP LOCKED)
        AND first_held(p_queue.id) IS NULL;
    RETURN false;
END $$;
