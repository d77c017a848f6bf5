-- What a runner calls: ends and claims in one transaction, and what may come next.

-- What a worker may find, and when something is due next. It is stable, so that all its statements see the same jobs:
-- one taken back between two of them would be in neither, and no event would follow.
CREATE FUNCTION peek(p_queue queue, p_worker text, p_kinds text[], p_now bigint, OUT ready boolean, OUT paused_until bigint, OUT is_full boolean,
    OUT is_limited boolean, OUT has_room boolean, OUT due bigint, OUT expires bigint, OUT next bigint, OUT in_line boolean, OUT has_lines boolean, OUT has_place boolean)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_all limits;
    v_cost int;
    v_next bigint;
    v_floors bigint[] := looks_from(p_queue.floors, 7, 5000, p_now);
    v_is_dear boolean := is_dear(p_queue.floors, 7, p_now);
    v_ends_dear boolean := is_dear(p_queue.floors, 8, p_now);
    v_passed bigint := passed_ready();
BEGIN
    paused_until := p_queue.paused_until;
    SELECT min(x.at) INTO due FROM unnest('{0,1,2,3}'::int[]) p(n), LATERAL (
        SELECT j.at FROM job j WHERE j.queue = p_queue.id AND j.state = 'ready' AND j.priority = p.n AND j.at > p_now
        ORDER BY j.at LIMIT 1) x;
    SELECT x.cost INTO v_cost FROM unnest('{0,1,2,3}'::int[]) p(n), LATERAL (
        SELECT j.cost FROM job j WHERE j.queue = p_queue.id AND j.state = 'ready' AND j.priority = p.n
            AND j.at <= p_now AND j.at >= v_floors[p.n + 1]
            AND NOT (j.suspect AND is_others(j.worker, j.alone_until, p_worker, p_queue.lease, p_now))
        ORDER BY j.at, j.place LIMIT 1) x LIMIT 1;
    ready := FOUND;
    IF NOT v_is_dear THEN PERFORM note_look(p_queue.floors, 7, passed_ready() - v_passed, p_now); END IF;
    has_lines := may_have_lines(p_queue, p_now);
    in_line := has_lines AND lines_of(p_queue.id, p_kinds) IS NOT NULL;
    -- A job that runs alone, or is about to, keeps others from its process.
    is_full := coalesce((SELECT bool_or(j.state::text = 'running' OR is_busy(p_queue.id, p_worker)) FROM job j WHERE j.queue = p_queue.id
        AND j.suspect AND j.worker IS NOT DISTINCT FROM p_worker AND (j.state::text = 'running' OR j.alone_until > p_now)), false);
    is_limited := false;
    has_place := false;
    IF p_queue.limited THEN
        IF p_queue.limit_sorts LIKE '%q%' THEN v_all := bounds_of(p_queue.id, 'q'); END IF;
        IF v_all.at_once IS NOT NULL THEN is_full := is_full OR taken_of(p_queue.id, 'q') >= v_all.at_once; END IF;
        IF v_all.rate_count IS NOT NULL AND v_cost IS NOT NULL THEN
            v_next := tokens_at(v_all, bucket_of(v_all, 'q', p_now), v_cost);
            is_full := is_full OR v_next > p_now;
        END IF;
        is_limited := is_full AND ready OR first_held(p_queue.id) IS NOT NULL;
        -- As many as the next claim takes. A limit whose first job is of another kind is checked beside others, or
        -- once a second.
        IF EXISTS (SELECT FROM freed WHERE queue = p_queue.id AND at <= p_now) THEN
            has_lines := true;
            has_place := EXISTS (SELECT FROM (SELECT DISTINCT f.name FROM (SELECT name FROM freed
                WHERE queue = p_queue.id AND at <= p_now ORDER BY at, id LIMIT 1024) f) f, LATERAL (
                    SELECT j.kind FROM job j WHERE j.queue = p_queue.id AND j.state = 'held' AND j.held_by = f.name
                    ORDER BY j.priority, j.at, j.place LIMIT 1) h WHERE p_kinds IS NULL OR h.kind = ANY (p_kinds))
                OR EXISTS (SELECT FROM freed WHERE queue = p_queue.id AND at <= p_now OFFSET 1024);
        END IF;
    END IF;
    v_passed := passed_ends();
    IF NOT v_ends_dear THEN
        SELECT min(j.expires) INTO expires FROM job j WHERE j.queue = p_queue.id AND j.expires IS NOT NULL;
    END IF;
    has_room := p_queue.max_waiting IS NULL OR pg_sequence_last_value(p_queue.waiting) < p_queue.max_waiting OR waiting_of(p_queue, p_now) < p_queue.max_waiting OR coalesce(expires <= p_now, false);
    IF v_next <= p_now THEN v_next := NULL; END IF;
    -- `least` ignores nulls.
    next := least(due, expires, v_next, CASE WHEN p_queue.paused_until > p_now THEN p_queue.paused_until END,
        CASE WHEN NOT v_ends_dear THEN (SELECT min(e.gone_at) FROM ended e WHERE e.queue = p_queue.id AND e.died = false AND e.gone_at IS NOT NULL) END,
        CASE WHEN NOT v_ends_dear THEN (SELECT min(e.gone_at) FROM ended e WHERE e.queue = p_queue.id AND e.died AND e.gone_at IS NOT NULL) END,
        CASE WHEN v_ends_dear THEN p_now + 1000 ELSE (SELECT min(j.at) FROM job j WHERE j.queue = p_queue.id AND j.state = 'running') END,
        (SELECT min(f.at) FROM freed f WHERE f.queue = p_queue.id AND f.at > p_now),
        CASE WHEN was_set_back(p_queue, p_now) THEN p_now END,
        (SELECT min(bounded(p.last) + bounded(p.every)) FROM periodic p WHERE p.queue = p_queue.id AND p.every IS NOT NULL),
        (SELECT p_now WHERE EXISTS (SELECT FROM edge_bell b WHERE b.queue = p_queue.id)));
    IF NOT v_ends_dear THEN PERFORM note_look(p_queue.floors, 8, passed_ends() - v_passed, p_now); END IF;
END $$;

-- The same, as an answer.
CREATE FUNCTION peek_answer(p_queue queue, p_worker text, p_kinds text[], p_now bigint) RETURNS answer LANGUAGE plpgsql STABLE AS $$
DECLARE v_peek record := peek(p_queue, p_worker, p_kinds, p_now);
BEGIN
    RETURN ROW('peek', v_peek.next, p_queue.name, NULL, NULL, v_peek.expires, NULL, NULL, NULL, NULL, NULL, NULL,
        v_peek.paused_until, v_peek.due, p_now, NULL,
        concat_ws(' ', CASE WHEN v_peek.ready THEN 'ready' END, CASE WHEN v_peek.is_full THEN 'full' END,
            CASE WHEN v_peek.is_limited THEN 'limited' END, CASE WHEN v_peek.has_room THEN 'room' END,
            CASE WHEN v_peek.in_line OR v_peek.has_place THEN 'kinds' WHEN v_peek.has_lines THEN 'others' END))::answer;
END $$;

-- Ends attempts and claims jobs, in one transaction: what a runner calls. It returns what happened, as answers.
-- `p_tick`: whether to tick now (false: at most once a second; null: never). `p_arm`: if there is no job, the caller
-- listens for this long. `p_due_since`: tell of jobs that became due since then. `p_about`: notes the caller as a
-- worker (`note_workers`). `p_room`: the bytes of the answer; null: what the server keeps until the commit, for up to
-- 16 jobs.
--
-- The common way, jobs that finish and others that begin, has as few statements and calls as possible: starting one
-- costs more than running it. So this function is long: two calls for its parts would cost 5 % of a job.
CREATE FUNCTION turn(p_numbers bigint[], p_tokens bigint[], p_ends text[], p_ats bigint[], p_errors text[], p_datas text[],
    p_queue text, p_most int, p_kinds text[], p_due_by bigint, p_lease bigint, p_worker text, p_tick boolean,
    p_arm bigint, p_due_since bigint, p_about text DEFAULT NULL, p_room int DEFAULT NULL) RETURNS SETOF answer LANGUAGE plpgsql AS $$
DECLARE
    v_queue queue;
    v_now bigint := clock();
    v_claims boolean := false;
    v_got int := 0;
    v_drops int;
    v_done bigint[];
    v_ends ends;
    v_claiming claiming;
    v_told answer[];
    v_more boolean := false;
    v_lined boolean := false;
    v_freed text[] := '{}';
    v_room int := coalesce(p_room, answer_room());
    v_setting text;
BEGIN
    IF p_room IS NULL AND p_most > 16 THEN p_most := 16; END IF;
    IF p_about IS NOT NULL THEN PERFORM note_workers(p_about); END IF;
    IF p_queue IS NOT NULL THEN
        SELECT * INTO v_queue FROM queue WHERE name = p_queue;
        IF NOT FOUND THEN PERFORM queue_of(p_queue); END IF;
        v_claims := p_most > 0 AND v_queue.paused_until <= v_now;
        IF p_tick IS NOT NULL AND (p_tick OR v_now - coalesce(pg_sequence_last_value(v_queue.ticked), 0) NOT BETWEEN 0 AND 999) THEN
            SELECT f.told, f.room INTO v_told, v_room FROM fitting(tick(v_queue, p_due_since, v_now), v_room) f;
            IF cardinality(v_told) > 0 THEN RETURN QUERY SELECT * FROM unnest(v_told); END IF;
        END IF;
    END IF;
    IF cardinality(p_numbers) > 0 THEN
        v_drops := CASE WHEN v_queue.retention = 0 AND NOT v_queue.limited THEN v_queue.id END;
        v_done := finish_dropped(v_drops, p_numbers, p_tokens, p_ends);
        IF cardinality(v_done) = cardinality(p_numbers) AND pg_sequence_last_value('edge_bells') IS NULL THEN
            RETURN NEXT word('finished');
        ELSE
            v_ends := end_many(p_numbers, p_tokens, p_ends, p_ats, p_errors, p_datas, p_queue IS NULL,
                CASE WHEN v_claims AND v_queue.limited THEN v_queue.id END, v_drops, v_done);
            v_freed := v_ends.freed;
            IF v_ends.is_all THEN RETURN NEXT word('finished', v_ends.state); END IF;
            IF cardinality(v_ends.told) > 0 THEN
                SELECT f.told, f.room INTO v_told, v_room FROM fitting(v_ends.told, v_room) f;
                RETURN QUERY SELECT * FROM unnest(v_told);
            END IF;
            v_room := v_room - 1000;
            IF cardinality(v_ends.answers) > 0 THEN RETURN QUERY SELECT * FROM unnest(v_ends.answers); END IF;
        END IF;
        -- The ends may have made jobs ready, or have waited while the options changed.
        IF v_now < clock() THEN
            v_now := clock();
            IF v_claims THEN SELECT * INTO v_queue FROM queue WHERE id = v_queue.id; END IF;
        END IF;
    ELSIF p_queue IS NOT NULL AND p_most > 0 THEN
        -- A claim alone need not be durable: if a crash of the server loses it, the job is ready again, and its token
        -- is void. (An assignment is no statement, as `PERFORM` would be.)
        v_setting := set_config('synchronous_commit', 'off', true);
    END IF;
    IF p_queue IS NOT NULL AND p_tick IS NOT NULL AND pg_sequence_last_value('edge_bells') IS NOT NULL THEN
        -- Before the claim, which may lock jobs of others.
        SELECT r.told, r.more INTO v_told, v_more FROM resolve(v_queue, v_now) r;
        IF cardinality(v_told) > 0 THEN
            SELECT f.told, f.room INTO v_told, v_room FROM fitting(v_told, v_room) f;
            RETURN QUERY SELECT * FROM unnest(v_told);
        END IF;
    END IF;
    -- Even a job that does not fit takes up to 150 bytes.
    IF p_room IS NULL AND v_room < 3000 THEN p_most := least(p_most, greatest((v_room - 500) / 150, 1)); END IF;
    FOR v_look IN 1 .. CASE WHEN v_claims THEN 3 ELSE 0 END LOOP
        IF v_look = 2 THEN
            CONTINUE WHEN p_arm IS NULL;
            -- A push before this may have rung no one, so it looks again.
            PERFORM arm_bell(v_queue.bell, p_arm);
        ELSIF v_look = 3 THEN
            -- Nothing is ready: a claim that takes jobs early may get one that is due later.
            EXIT WHEN p_due_by IS NULL OR p_due_by <= v_now;
        END IF;
        v_claiming := NULL;
        IF NOT (v_queue.limited OR v_look = 3 AND has_special(v_queue.id, p_due_by, p_worker, p_kinds, v_queue.lease, v_now)) THEN
            IF v_look = 3 THEN PERFORM claim_early(v_queue, p_kinds, p_due_by, v_now); END IF;
            v_claiming := lock_plain(v_queue.id, v_queue.floors, v_queue.turns, v_queue.bell, p_most, p_worker, p_kinds,
                v_queue.lease, p_due_by, v_now);
            v_lined := v_lined OR coalesce(v_claiming.lined, false);
        END IF;
        IF v_claiming.spots IS NULL
            AND (v_queue.limited OR has_special(v_queue.id, CASE WHEN v_look = 3 THEN p_due_by ELSE v_now END, p_worker, p_kinds,
                v_queue.lease, v_now)) THEN
            v_claiming := claim_limited(v_queue, p_most, p_worker, p_kinds, p_due_by, v_now, v_look = 3, v_freed);
            v_freed := '{}';
            v_lined := v_lined OR v_claiming.lined;
            IF cardinality(v_claiming.told) > 0 THEN
                SELECT f.told, f.room INTO v_told, v_room FROM fitting(v_claiming.told, v_room) f;
                RETURN QUERY SELECT * FROM unnest(v_told);
            END IF;
        END IF;
        v_got := coalesce(cardinality(v_claiming.spots), 0);
        IF v_got > 0 THEN
            -- The look may have waited, and a lease begins with its claim. A token also depends on the time, since a
            -- session may have set the seed of its random numbers.
            v_now := clock();
            -- The bytes of each job beside its numbers. (An answer may end with a peek.) One that does not fit has
            -- no more.
            v_room := (v_room - 500) / v_got - 150;
            RETURN QUERY UPDATE job j SET state = 'running', token = ((random() * 9007199254740991)::bigint # v_now) + 1,
                at = v_now + coalesce(p_lease, v_queue.lease), since = v_now, place = nextval('place'), worker = p_worker, expires = NULL,
                held_by = NULL, counted = coalesce(v_claiming.counted, false), resubmit = CASE WHEN j.resubmit > v_now THEN j.resubmit END,
                fingerprint = CASE WHEN j.uniq_until = 'c' AND j.skips_from IS NULL THEN NULL ELSE j.fingerprint END,
                uniq = CASE WHEN j.uniq_until = 'c' THEN NULL ELSE j.uniq END, uniq_until = nullif(j.uniq_until, 'c')
            -- They come in any order, with their places.
            WHERE j.ctid = ANY (v_claiming.spots)
            RETURNING 'claimed'::text, j.number, CASE WHEN j.name IS NOT NULL AND fits(j, v_room) THEN j.name END, NULL::text, NULL::text, j.token,
                CASE WHEN octet_length(j.kind) <= 64 OR fits(j, v_room) THEN j.kind END,
                -- For common jobs, and those with only a key, this is the same as `fits` without a call.
                CASE WHEN octet_length(j.payload) + 6 * coalesce(octet_length(j.key), 0) <= v_room - 64 AND octet_length(j.kind) <= 64
                        AND coalesce(j.name, j.data, j.error, j.root) IS NULL
                    OR fits(j, v_room) THEN j.payload END,
                CASE WHEN j.data IS NOT NULL AND fits(j, v_room) THEN j.data END, CASE WHEN j.error IS NOT NULL AND fits(j, v_room) THEN j.error END,
                j.failures, j.crashes, j.pushed, j.due, j.since, (array_position(v_claiming.numbers, j.number) << 2) + j.priority,
                CASE WHEN coalesce(j.key, j.root, j.meta) IS NULL AND j.cost = 1 AND coalesce(j.resubmit, j.noted) IS NULL THEN NULL
                    WHEN octet_length(j.payload) + 6 * coalesce(octet_length(j.key), 0) <= v_room - 64 AND octet_length(j.kind) <= 64
                        AND coalesce(j.name, j.data, j.error, j.root) IS NULL
                        OR fits(j, v_room)
                    THEN more_of(j.key, j.resubmit, j.root, j.root_at, j.cost, j.meta, j.noted) END;
        END IF;
        EXIT WHEN v_got > 0 OR v_claiming.again;
    END LOOP;
    IF v_claims AND v_got < p_most AND (v_more AND v_got = 0 OR v_claiming.again) THEN RETURN NEXT word('again'); END IF;
    -- While this call had locks, other workers skipped jobs that they take.
    IF v_lined THEN
        RETURN NEXT word('lined');
        RETURN QUERY SELECT * FROM untaken(v_queue, v_now);
    END IF;
    IF p_queue IS NOT NULL AND (p_tick OR v_got < p_most OR v_claiming.is_all) THEN
        RETURN NEXT CASE WHEN p_tick OR v_got = 0 AND p_most > 0 OR v_claiming.again OR has_bells(v_queue) THEN peek_answer(v_queue, p_worker, p_kinds, v_now)
            ELSE word('short') END;
    ELSIF v_got > 0 AND cardinality(p_numbers) > 0 AND NOT has_bells(v_queue) THEN
        -- The caller has changed the queue, and would look again.
        RETURN NEXT word('full');
    END IF;
END $$;

-- Whether limits or doorbells may bring something sooner than the last peek said. Places in limits of keys and kinds
-- come only with the ends of jobs.
CREATE FUNCTION has_bells(p_queue queue) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF has_edge_bells(p_queue.id) THEN RETURN true; END IF;
    IF NOT p_queue.limited THEN RETURN false; END IF;
    RETURN p_queue.limit_sorts ~ '[qr]' OR EXISTS (SELECT FROM freed WHERE queue = p_queue.id);
END $$;
