-- The bytes of answers, and the calls whose answers are larger than what the server buffers until the commit.

-- A call that writes answers with at most 8 kB, which the server buffers until the commit. With more, it would wait
-- within the transaction for its caller to read: a frozen process would keep all the locks of the call for ever.
-- What does not fit is loaded by a call that only reads, or the call is a procedure that commits before it answers
-- (`turn_and_commit`). This is the room without the column names and without what the protocol adds. A character may
-- become longer in another encoding. (A session has one encoding, so plans may contain the number.)
CREATE FUNCTION answer_room() RETURNS int LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN getdatabaseencoding() = pg_client_encoding() THEN 7600 ELSE 2500 END $$;

-- The answers that fit into a third of this room, and the number of the others. Returns the room that is left. (A row
-- has 7 bytes and 4 for each column beside its values, and its numbers are longer than their text.)
CREATE FUNCTION fitting(p_told answer[], p_room int, OUT told answer[], OUT room int) LANGUAGE plpgsql AS $$
DECLARE v_fit record;
BEGIN
    SELECT count(*)::int AS count, coalesce(max(f.bytes), 0)::int AS bytes INTO v_fit FROM (
        SELECT sum(139 + octet_length(t::text)) OVER (ROWS UNBOUNDED PRECEDING) AS bytes FROM unnest(p_told[:1024]) t) f
    WHERE f.bytes <= p_room / 3 - 150;
    told := p_told;
    IF v_fit.count < cardinality(p_told) THEN
        -- Of the lines that do not fit, only those that the log has by default are counted.
        told := p_told[:v_fit.count] || more_answer(cardinality(p_told) - v_fit.count, (SELECT count(*) FROM unnest(p_told[v_fit.count + 1:]) t
            WHERE t.what = 'line' AND t.outcome NOT IN ('held', 'skipped')));
    END IF;
    room := p_room - v_fit.bytes - 150;
END $$;

-- The same for a call whose answer has little else.
CREATE FUNCTION few(p_told answer[]) RETURNS SETOF answer LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(p_told) > 0 THEN RETURN QUERY SELECT t.* FROM fitting(p_told, answer_room() * 3 / 2) f, unnest(f.told) t; END IF;
END $$;

CREATE FUNCTION more_answer(p_count bigint, p_lines bigint DEFAULT 0) RETURNS answer LANGUAGE sql AS
$$ SELECT ROW('more', p_count, NULL, NULL, NULL, p_lines, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL)::answer $$;

-- Warns the caller. The server sends a warning at once, within the transaction, and would wait with all its locks for
-- a caller that does not read. So a transaction has eight at most, which are short.
CREATE FUNCTION warn(p_what text, p_reason text, p_hint text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 8;
    v_nth int := coalesce(nullif(current_setting('waterline.warned', true), '')::int, 0) + 1;
BEGIN
    IF v_nth > c_most THEN RETURN; END IF;
    PERFORM set_config('waterline.warned', v_nth::text, true);
    RAISE WARNING 'waterline: %: %', p_what, left(p_reason, 200)
        USING HINT = p_hint || CASE WHEN v_nth = c_most THEN ' This transaction warns no more, whatever else it finds.' ELSE '' END;
END $$;

-- The calls that commit before they answer: a caller that reads the answer slowly, or not at all, keeps nothing
-- locked. They are for answers that do not fit into what the server buffers until the commit (see `answer_room`), and
-- cannot be part of a transaction of the caller.
--
-- A procedure that commits has the rights and the settings of its caller, so each one calls a function. Its answers
-- are one row: the numbers of all answers, and their texts. It needs READ COMMITTED, whatever the user has as
-- default.

-- Begins a new transaction at the level that these calls need.
CREATE PROCEDURE begin_anew() LANGUAGE plpgsql AS $$
BEGIN
    ROLLBACK;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
END $$;

CREATE PROCEDURE turn_and_commit(p_numbers bigint[], p_tokens bigint[], p_ends text[], p_ats bigint[], p_errors text[], p_datas text[],
    p_queue text, p_most int, p_kinds text[], p_due_by bigint, p_lease bigint, p_worker text, p_tick boolean,
    p_arm bigint, p_due_since bigint, p_about text DEFAULT NULL, INOUT numbers bigint[] DEFAULT NULL, INOUT texts text[] DEFAULT NULL) LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN CALL {schema}.begin_anew(); END IF;
    SELECT array_agg(ARRAY[a.number, a.token, a.failures, a.crashes, a.pushed, a.due, a.since, a.priority]),
        array_agg(ARRAY[a.what, a.id, a.outcome, a.state, a.kind, a.payload, a.data, a.error, a.more])
    INTO numbers, texts FROM {schema}.turn(p_numbers, p_tokens, p_ends, p_ats, p_errors, p_datas, p_queue, p_most, p_kinds, p_due_by,
        p_lease, p_worker, p_tick, p_arm, p_due_since, p_about, 8 << 20) a;
    COMMIT;
END $$;

CREATE PROCEDURE push_and_commit(p_queue text, p_kinds text[], p_payloads text[], p_settings text[], p_batch boolean,
    INOUT numbers bigint[] DEFAULT NULL, INOUT texts text[] DEFAULT NULL) LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN CALL {schema}.begin_anew(); END IF;
    SELECT array_agg(ARRAY[a.number, a.token, a.failures, a.crashes, a.pushed, a.due, a.since, a.priority]),
        array_agg(ARRAY[a.what, a.id, a.outcome, a.state, a.kind, a.payload, a.data, a.error, a.more])
    INTO numbers, texts FROM unnest({schema}.push_jobs(p_queue, p_kinds, p_payloads, p_settings, p_batch)) a;
    COMMIT;
END $$;

-- For several queues: their locks are not held while the caller reads an answer. The caller names them in one order,
-- so that two such calls do not wait for each other.
CREATE PROCEDURE push_across_and_commit(p_queues text[], p_counts int[], p_kinds text[], p_payloads text[], p_settings text[],
    p_batches boolean[], INOUT numbers bigint[] DEFAULT NULL, INOUT texts text[] DEFAULT NULL) LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN CALL {schema}.begin_anew(); END IF;
    SELECT array_agg(ARRAY[a.number, a.token, a.failures, a.crashes, a.pushed, a.due, a.since, a.priority]),
        array_agg(ARRAY[a.what, a.id, a.outcome, a.state, a.kind, a.payload, a.data, a.error, a.more])
    INTO numbers, texts FROM unnest({schema}.push_across(p_queues, p_counts, p_kinds, p_payloads, p_settings, p_batches)) a;
    COMMIT;
END $$;

-- For jobs without settings: more than `push_plain` answers for within its transaction.
CREATE PROCEDURE push_plain_and_commit(p_queue text, p_kinds text[], p_payloads text[], INOUT numbers bigint[] DEFAULT NULL) LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN CALL {schema}.begin_anew(); END IF;
    numbers := {schema}.push_plain(p_queue, p_kinds, p_payloads);
    COMMIT;
END $$;

CREATE PROCEDURE change_note_and_commit(p_queue text, p_place text, p_what text, p_value text, p_for bigint,
    INOUT old_value text DEFAULT NULL, INOUT old_until bigint DEFAULT NULL, INOUT value text DEFAULT NULL,
    INOUT until bigint DEFAULT NULL) LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN CALL {schema}.begin_anew(); END IF;
    SELECT c.* INTO old_value, old_until, value, until FROM {schema}.put_note(p_queue, p_place, p_what, p_value, p_for) c;
    COMMIT;
END $$;
