-- The call that is a whole worker, except for its handlers.

-- For every language: takes what the caller has, and returns what it is to do. `p_jobs` has an object for each of its
-- jobs: `job`, `token`, and once its attempt has ended `end` (finish or fail) and `said` (the data or the error).
-- Those are ended, and of the others each lease is renewed of which a third has passed. Then it is given `jobs` for
-- the rest of its `p_slots`. `gone` are the tokens of those that it no longer has, by their ends or because they are
-- another worker's. It calls again when an attempt has ended, when a bell rings (see `listen`), or after `sleep_ms`:
-- at the latest after `p_poll`, while it has room. `p_stops`: it is given no more. What fails from now on was cut
-- short, and if it dies, that is no crash: in both cases the attempt does not count. `p_async` is that of `claim`. Of
-- a job that does not fit into the answer it is given `job` and `token`, and `load` brings the rest. `p_about` says
-- who the caller is, for the list of workers: a number that it has drawn (below 10^18), its process, host, language
-- and version, as far as it likes.
CREATE FUNCTION work(p_queue text, p_worker text, p_kinds text[], p_slots int DEFAULT 1, p_lease bigint DEFAULT NULL,
    p_poll bigint DEFAULT 1000, p_jobs json DEFAULT '[]', p_stops boolean DEFAULT false, p_async boolean DEFAULT false,
    p_about json DEFAULT NULL, OUT jobs json, OUT gone json, OUT sleep_ms int) LANGUAGE plpgsql AS $$
DECLARE
    -- For each call, so that its answer has room for their tokens, and for the jobs that do not fit.
    c_ends CONSTANT int := 100;
    c_gone CONSTANT int := 150;
    c_jobs CONSTANT int := 32;
    v_before text := current_setting('synchronous_commit');
    v_queue queue := queue_of(p_queue);
    v_now bigint := clock();
    v_third bigint := coalesce(p_lease, v_queue.lease) / 3;
    v_has record;
    v_done record;
    v_rest record;
    v_look record;
    v_due int;
    v_most int := 0;
    v_answers answer[];
    v_got int;
    v_gone bigint[];
    v_next bigint;
BEGIN
    p_lease := bounded(p_lease);
    IF p_lease <= 0 THEN PERFORM refuse('a lease has 1 millisecond or more, or is null: that of the queue'); END IF;
    p_slots := coalesce(p_slots, 1);
    p_poll := coalesce(p_poll, 1000);
    BEGIN
        PERFORM note_worker(v_queue, p_worker, p_about, p_kinds, p_slots, p_stops, v_now);
    EXCEPTION WHEN data_exception OR SQLSTATE 'WQ002' THEN
        -- A misspelt word shows at the first call. What a worker says of itself must not cost its leases and ends.
        IF json_array_length(p_jobs) = 0 THEN RAISE; END IF;
        PERFORM warn_of_about(SQLERRM);
    END;
    SELECT coalesce(array_agg(u.job), '{}') AS jobs, coalesce(array_agg(u.token), '{}') AS tokens,
        -- Data that the queue does not take would be refused each time, and with it the whole call.
        array_agg(CASE WHEN u.is_large THEN format('its data has %s bytes, and its queue takes %s at most', octet_length(u.said), v_queue.max_payload)
            ELSE u.said END) AS said,
        array_agg(CASE WHEN u.is_large THEN 'failed' WHEN u."end" = 'finish' THEN 'finished'
            WHEN u."end" = 'fail' THEN CASE WHEN p_stops THEN 'put_back' ELSE 'failed' END ELSE u."end" END) AS ends
    INTO v_has FROM (SELECT u.*, u."end" = 'finish' AND octet_length(u.said) > v_queue.max_payload AS is_large
        FROM json_to_recordset(p_jobs) u(job bigint, token bigint, "end" text, said text)) u;
    -- What is locked is noted, renewed and ended by a later call: no other job of the caller waits for that.
    IF p_stops THEN
        PERFORM note_stop(array_agg(u.number), array_agg(u.token)) FROM unnest(v_has.jobs, v_has.tokens, v_has.ends) u(number, token, end_),
            LATERAL (SELECT FROM job j WHERE j.number = u.number AND j.token = u.token AND NOT j.stopping
                FOR NO KEY UPDATE SKIP LOCKED) j WHERE u.end_ IS NULL;
    END IF;
    SELECT coalesce(array_agg(u.number), '{}') AS jobs, coalesce(array_agg(u.token), '{}') AS tokens, array_agg(u.end_) AS ends,
        array_agg(CASE WHEN u.end_ = 'failed' THEN u.said END) AS errors, array_agg(CASE WHEN u.end_ = 'finished' THEN u.said END) AS datas,
        coalesce(min(u.at) <= v_now + 2 * v_third, false) AS due
    INTO v_done FROM (SELECT u.*, j.at FROM unnest(v_has.jobs, v_has.tokens, v_has.ends, v_has.said) u(number, token, end_, said),
        LATERAL (SELECT j.at FROM job j WHERE j.number = u.number AND j.token = u.token FOR UPDATE SKIP LOCKED) j
    WHERE u.end_ IS NOT NULL LIMIT c_ends) u;
    SELECT coalesce(array_agg(u.number), '{}') AS jobs, coalesce(array_agg(u.token), '{}') AS tokens INTO v_rest
    FROM unnest(v_has.jobs, v_has.tokens) u(number, token) WHERE u.token <> ALL (v_done.tokens);
    v_look := held(v_rest.jobs, v_rest.tokens, v_now + 2 * v_third);
    IF v_done.due OR v_look.due > 0 THEN
        v_due := v_look.due;
        -- Those that have ended, too: a tick would take back one whose lease has expired, and forget its end.
        PERFORM renew_all(v_has.jobs, v_has.tokens, p_lease);
        v_look := held(v_rest.jobs, v_rest.tokens, v_now + 2 * v_third);
        -- Ends and claims may wait for others, which would keep a renewal from its commit. So they are the next call.
        IF v_done.due OR v_look.due < v_due THEN
            jobs := '[]';
            gone := to_json(v_look.lost[:c_gone]);
            sleep_ms := 0;
            RETURN;
        END IF;
    END IF;
    IF NOT p_stops THEN
        SELECT greatest(p_slots - count(*), 0) INTO v_most FROM unnest(v_has.tokens, v_has.ends) u(token, end_)
        WHERE u.end_ IS NULL AND u.token <> ALL (v_look.lost);
    END IF;
    v_answers := turns(v_done.jobs, v_done.tokens, v_done.ends, v_done.errors, v_done.datas, p_queue, least(v_most, c_jobs),
        p_worker, p_kinds, p_lease, 2 * p_poll);
    v_gone := v_done.tokens || v_look.lost;
    gone := to_json(v_gone[:c_gone]);
    SELECT coalesce('[' || string_agg(CASE WHEN j.fits THEN j.whole ELSE j.brief END, ',' ORDER BY j.place) || ']', '[]')::json, count(*)
    INTO jobs, v_got FROM (
        SELECT j.*, j.is_whole AND sum(octet_length(j.whole) - 55) OVER (ORDER BY j.place)
            <= answer_room() - octet_length(gone::text) - 56 * count(*) OVER () AS fits
        FROM (SELECT a.payload IS NOT NULL AS is_whole, row_number() OVER (ORDER BY a.priority & 3, a.priority) AS place,
            json_build_object('job', a.number, 'token', a.token, 'id', id_of(a.id, a.number), 'kind', a.kind, 'payload', a.payload, 'data', a.data,
                'failures', a.failures, 'crashes', a.crashes, 'pushed', a.pushed, 'more', a.more::json)::text AS whole,
            format('{"job":%s,"token":%s}', a.number, a.token) AS brief FROM unnest(v_answers) a WHERE a.what = 'claimed') j) j;
    SELECT a.number INTO v_next FROM unnest(v_answers) a WHERE a.what = 'peek';
    -- One that stops, and has nothing, need not wait at all.
    IF v_most = 0 THEN v_next := CASE WHEN p_stops AND v_look.until IS NULL THEN v_now ELSE v_now + v_third END;
    ELSIF v_got = v_most THEN v_next := v_now + v_third;
    ELSIF v_got > 0 OR NOT FOUND THEN v_next := v_now;
    -- What a tick is to do waits for the next one.
    ELSIF v_next <= v_now THEN v_next := greatest(pg_sequence_last_value(v_queue.ticked) + 1000, v_now + 10);
    END IF;
    IF v_got < v_most THEN v_next := least(v_next, v_now + p_poll); END IF;
    v_next := least(v_next, CASE WHEN v_look.due = 0 THEN v_look.until - 2 * v_third ELSE v_now + v_third / 8 END);
    -- An end that waits for another commit.
    IF EXISTS (SELECT FROM unnest(v_has.tokens, v_has.ends) u(token, end_)
        WHERE u.end_ IS NOT NULL AND u.token <> ALL (v_done.tokens || v_look.lost)) THEN
        v_next := least(v_next, v_now + least(v_third / 8, 250));
    END IF;
    IF cardinality(v_done.jobs) = c_ends OR cardinality(v_gone) > c_gone THEN v_next := v_now; END IF;
    -- The call may have waited.
    sleep_ms := greatest(least(v_next - clock(), 2147483647), 0);
    -- A turn that only claims has made the transaction asynchronous.
    IF NOT p_async OR cardinality(v_done.jobs) > 0 THEN PERFORM set_config('synchronous_commit', v_before, true); END IF;
END $$;

-- The tokens of the expired leases, when the first of the others ends, and how many of these end by this time.
CREATE FUNCTION held(p_jobs bigint[], p_tokens bigint[], p_by bigint, OUT lost bigint[], OUT until bigint, OUT due int)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT coalesce(array_agg(u.token) FILTER (WHERE h.at IS NULL), '{}'), min(h.at), count(*) FILTER (WHERE h.at <= p_by)
    INTO lost, until, due FROM unnest(p_jobs, p_tokens) u(number, token) LEFT JOIN LATERAL (
        SELECT j.at FROM job j WHERE j.number = u.number AND j.token = u.token LIMIT 1) h ON true;
END $$;

-- Listens on the channel of a queue, until the connection ends. It needs a connection without a pooler.
CREATE FUNCTION listen(p_queue text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('LISTEN %I', listen_to(p_queue));
END $$;
