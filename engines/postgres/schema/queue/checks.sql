-- What a caller may say about a job or a queue. A misspelt word is refused: otherwise it would be a limit that is not
-- kept, or a retry that never comes.

-- (The server sends an error before it rolls back, so the error is short, whatever the caller has said.)
CREATE FUNCTION refuse(p_text text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE 'waterline: %', CASE WHEN length(p_text) > 1000 THEN left(p_text, 1000) || '…' ELSE p_text END USING ERRCODE = 'WQ002';
END $$;

-- Refuses what is not an object, and unknown members.
CREATE FUNCTION check_members(p_of text, p_object jsonb, p_known text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_typeof(p_object) <> 'object' THEN PERFORM refuse(format('%s is a JSON object, and not %s', p_of, p_object)); END IF;
    IF p_object - p_known <> '{}' THEN
        PERFORM refuse(format('%s has %s, and no such members: %s', p_of, array_to_string(p_known, ', '), p_object - p_known));
    END IF;
END $$;

-- Names that callers give have 1 to 255 bytes.
CREATE FUNCTION check_name(p_of text, p_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF octet_length(p_name) NOT BETWEEN 1 AND 255 THEN
        PERFORM refuse(format('%s has 1 to 255 bytes, and not %s', p_of, octet_length(p_name)));
    END IF;
END $$;

-- Refuses a call for more jobs than its answer has room for (see `answer_room`).
CREATE FUNCTION refuse_count(p_jobs bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM refuse(format('this call is for 256 jobs at most, and not for %s', cardinality(p_jobs)));
END $$;

-- Refuses what is not a job, before a row is made of it.
CREATE FUNCTION check_job(p_kind text, p_payload text, p_most int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_kind IS NULL OR p_payload IS NULL THEN
        PERFORM refuse('a job has a kind and a payload, and null is neither; the arrays of a call have the same length');
    END IF;
    PERFORM check_name('the kind of a job', p_kind);
    PERFORM check_size('the payload of a job', p_payload, p_most);
END $$;

-- Refuses a payload, or data, with more bytes than the queue takes.
CREATE FUNCTION check_size(p_of text, p_text text, p_most int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF octet_length(p_text) > p_most THEN
        RAISE 'waterline: % has % bytes, and its queue takes % at most', p_of, octet_length(p_text), p_most
            USING ERRCODE = 'WQ012', DETAIL = octet_length(p_text)::text, HINT = p_most::text;
    END IF;
END $$;

-- Refuses settings that no job can have, and a retry that could not be computed at the end of an attempt.
CREATE FUNCTION check_settings(p_settings jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_unique jsonb := nullif(p_settings->'unique', 'null'); v_root jsonb := nullif(p_settings->'root', 'null');
BEGIN
    PERFORM check_members('the settings of a job', p_settings,
        '{id,delay_ms,run_at,priority,key,cost,retry,retention_ms,unique,skip,root,expires_ms,after,on_dead,meta,pushed}');
    IF p_settings ? 'id' THEN
        PERFORM check_name('the id of a job', p_settings->>'id');
        IF p_settings->>'id' LIKE '~%' THEN
            PERFORM refuse(format('the id "%s" begins with `~`, as those that the queue makes: use another one, or none', p_settings->>'id'));
        END IF;
    END IF;
    IF p_settings ? 'key' THEN PERFORM check_name('the key of a job', p_settings->>'key'); END IF;
    IF p_settings ? 'skip' THEN PERFORM check_name('a fingerprint', p_settings->>'skip'); END IF;
    IF p_settings ? 'retry' THEN PERFORM check_retry(p_settings->'retry'); END IF;
    IF v_unique IS NOT NULL THEN
        PERFORM check_members('`unique`', v_unique, '{fingerprint,until,within_ms,clash}');
        PERFORM check_name('a fingerprint', v_unique->>'fingerprint');
        IF p_settings->>'skip' <> v_unique->>'fingerprint' THEN
            PERFORM refuse('a job has one fingerprint: `skip` and that of `unique` are the same');
        END IF;
        IF v_unique->>'fingerprint' IS NULL OR coalesce(v_unique->>'until', '') NOT IN ('claimed', 'done', 'within') THEN
            PERFORM refuse('a unique job has a fingerprint, and is unique until "claimed", "done" or "within"');
        END IF;
        IF v_unique->>'until' = 'within' AND coalesce((v_unique->>'within_ms')::numeric, -1) < 0 THEN
            PERFORM refuse('a job that is unique "within" a time has `within_ms`, of 0 or more');
        END IF;
        IF v_unique->>'clash' NOT IN ('keep', 'replace', 'earliest') THEN
            PERFORM refuse(format('a push that finds a twin may keep, replace or earliest, and not %s', v_unique->'clash'));
        END IF;
    END IF;
    IF v_root IS NOT NULL THEN
        PERFORM check_members('`root`', v_root, '{signature,at,leaf}');
        IF v_root->>'signature' IS NULL OR v_root->>'at' IS NULL THEN
            PERFORM refuse('a root has a `signature`, and a time: `at`');
        END IF;
        PERFORM check_name('the signature of a root', v_root->>'signature');
    END IF;
    IF p_settings ? 'meta' AND json_typeof((p_settings->>'meta')::json) <> 'object' THEN
        PERFORM refuse('`meta` is the text of a JSON object');
    END IF;
    IF (p_settings->>'priority')::numeric NOT IN (0, 1, 2, 3) THEN
        PERFORM refuse(format('a priority is 0 (urgent), 1, 2 or 3 (low), and not %s', p_settings->'priority'));
    END IF;
    IF (p_settings->>'cost')::numeric < 1 THEN
        PERFORM refuse(format('a job costs 1 token or more, and not %s', p_settings->'cost'));
    END IF;
    IF (p_settings->>'delay_ms')::numeric < 0 OR (p_settings->>'run_at')::numeric < 0 OR (p_settings->>'expires_ms')::numeric < 0
        OR (p_settings->>'retention_ms')::numeric < -1 THEN
        PERFORM refuse('no time of a job is below 0, but for a `retention_ms` of -1: for ever');
    END IF;
    IF p_settings->>'on_dead' NOT IN ('die', 'run', 'hold') THEN
        PERFORM refuse(format('a job whose forerunner is dead may die, run or hold, and not %s', p_settings->'on_dead'));
    END IF;
END $$;

CREATE FUNCTION check_retry(p_retry jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF nullif(p_retry, 'null') IS NULL THEN RETURN; END IF;
    PERFORM check_members('a retry', p_retry, '{first_ms,growth,factor,cap_ms,attempts,jitter}');
    IF p_retry->>'growth' NOT IN ('fixed', 'doubling', 'factor', 'quadratic') THEN
        PERFORM refuse(format('a retry grows fixed, doubling, factor or quadratic, and not %s', p_retry->'growth'));
    END IF;
    IF (p_retry->>'jitter')::numeric NOT BETWEEN 0 AND 1 THEN PERFORM refuse('the jitter of a retry is 0 to 1'); END IF;
    IF (p_retry->>'attempts')::numeric < 1 THEN PERFORM refuse('a retry gives 1 attempt or more'); END IF;
    PERFORM pause_of(p_retry, 1, 1);
EXCEPTION WHEN data_exception THEN
    RAISE 'waterline: this retry is none: % (%)', p_retry, SQLERRM USING ERRCODE = 'WQ002';
END $$;

-- Refuses options that no queue can have, and limits that would bound nothing.
CREATE FUNCTION check_options(p_options jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_limit jsonb; v_rate jsonb; v_names text[] := '{}';
BEGIN
    PERFORM check_members('the options of a queue', p_options,
        '{lease_ms,retry,max_crashes,retention_ms,dead_for_ms,ids_for_ms,heal_after_ms,max_waiting,max_payload,limits}');
    PERFORM check_retry(p_options->'retry');
    IF NOT p_options ? 'limits' THEN RETURN; END IF;
    IF jsonb_typeof(p_options->'limits') <> 'array' THEN PERFORM refuse('`limits` is a list; an empty one is no limit'); END IF;
    FOR v_limit IN SELECT * FROM jsonb_array_elements(p_options->'limits') LOOP
        PERFORM check_members('a limit', v_limit, '{of,name,at_once,rate}');
        v_rate := nullif(v_limit->'rate', 'null');
        IF coalesce(v_limit->>'of', '') NOT IN ('queue', 'each_key', 'kind', 'key') THEN
            PERFORM refuse(format('a limit is `of` queue, each_key, kind or key, and not %s', v_limit));
        END IF;
        IF (v_limit->>'name' IS NULL) = (v_limit->>'of' IN ('kind', 'key')) THEN
            PERFORM refuse(format('a limit of a kind or a key has its `name`, and no other one has a name: %s', v_limit));
        END IF;
        PERFORM check_name('the name of a limit', v_limit->>'name');
        IF v_limit->>'at_once' IS NULL AND v_rate IS NULL THEN
            PERFORM refuse(format('a limit has `at_once`, `rate` or both: %s', v_limit));
        END IF;
        IF v_rate IS NOT NULL THEN
            PERFORM check_members('a rate', v_rate, '{count,per_ns,burst}');
            IF v_rate->>'count' IS NULL OR v_rate->>'per_ns' IS NULL THEN
                PERFORM refuse(format('a rate is a `count` in `per_ns` nanoseconds: %s', v_rate));
            END IF;
        END IF;
        v_names := v_names || concat(v_limit->>'of', ' ', v_limit->>'name');
    END LOOP;
    IF cardinality(v_names) > (SELECT count(DISTINCT n) FROM unnest(v_names) n) THEN
        PERFORM refuse(format('two limits are of the same: %s', p_options->'limits'));
    END IF;
END $$;
