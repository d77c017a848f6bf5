-- The job queue. This file: its tables, its registers, and the clock.
--
-- The rules of a queue are the functions of these files: every caller keeps all of them, in whatever language. Each call
-- is one transaction, or a part of the caller's. All of them are written for READ COMMITTED: each statement sees what was
-- committed before it.
--
-- * Times are milliseconds since 1970 by the clock of this server; durations are milliseconds. No client sends the current
--   time.
-- * A payload, data and metadata are JSON as text, kept byte for byte.
-- * A job that has not ended is in `job`, and one that has ended is in `ended`: so history is in no index that a claim reads.
-- * A push and a claim change no rows but those of jobs: on a row that all of them change, they would wait for each other.
--
-- A later version is a file of its own, which runs while programs of this version go on:
-- * It says in `version.serves` which programs it serves: at least those of the previous version.
-- * A call keeps its name, its arguments with their names and defaults, and the columns of its answer. It is replaced by
--   CREATE OR REPLACE and never dropped, since running calls would fail.
-- * A new argument is one of a second function of the same name, which has no defaults at all: so a call that leaves
--   arguments out means the first one, which calls the second one.
-- * What cannot be done in this way, like a new column of an answer, gets another name.
-- * A new column of `job` is one of `ended`, too, and has a default or may be null. `end_many` names the columns that stay
--   with a job that has finished.
-- * The file ends with that of the rights, since a new function has none, and with its row in `version`. The transaction
--   waits for a lock for 3 seconds at most: all calls would wait behind it.

-- For the session, not one transaction: outside of one, the names below would be made in another schema.
SET search_path = {schema}, pg_temp;

CREATE TYPE job_state AS ENUM ('ready', 'held', 'waiting', 'running');

-- One number for each push, claim and return of a job: the order of the queue.
CREATE SEQUENCE place;

-- The queues. Only `create_queue`, `set_options`, `pause` and a clock that was set back write these rows.
CREATE TABLE queue (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE CHECK (octet_length(name) BETWEEN 1 AND 255),
    lease bigint NOT NULL DEFAULT 60000 CHECK (lease > 0),
    -- {first_ms, growth: fixed | doubling | factor | quadratic, factor, cap_ms, attempts, jitter}.
    retry jsonb NOT NULL DEFAULT
        '{"first_ms": 1000, "growth": "doubling", "cap_ms": 3600000, "attempts": 10, "jitter": 0.2}',
    max_crashes int DEFAULT 5 CHECK (max_crashes > 0),
    -- -1: for ever; 0: not at all. The same in `job`, where null means as the queue says.
    retention bigint NOT NULL DEFAULT 60000,
    dead_for bigint NOT NULL DEFAULT 604800000,
    -- For how long an id that is gone counts as one that has ended; 0: not at all.
    ids_for bigint NOT NULL DEFAULT 2419200000,
    heal_after bigint,
    max_waiting bigint CHECK (max_waiting > 0),
    -- The most bytes of a payload, and of data: an answer with one of them has to fit into each worker's memory.
    max_payload int NOT NULL DEFAULT 16777216 CHECK (max_payload BETWEEN 1 AND 268435456),
    -- Whether it has a row in `limits`: then claims take turns.
    limited boolean NOT NULL DEFAULT false,
    -- The sorts of its limits: q, e, k, t as in their names; a if that of each key bounds its jobs at once; c if one
    -- of a kind does; r if one is a rate.
    limit_sorts text NOT NULL DEFAULT '',
    paused_until bigint NOT NULL DEFAULT 0,
    paused_since bigint NOT NULL DEFAULT 0,
    -- When the clock was last set back, and by how much.
    set_back_at bigint,
    set_back_by bigint,
    -- The options with which `set_options` was called last.
    options jsonb,
    -- The registers are sequences: the only cells of PostgreSQL that no transaction holds and of which no old
    -- versions stay behind. Each is a hint that may be lost.
    -- Below 0: minus the time of the last NOTIFY. Above 0: a caller listens until then.
    bell regclass,
    -- The time of the last tick.
    ticked regclass,
    -- The latest time that was seen, to within a second. If the clock is behind it, it was set back.
    seen regclass,
    -- The number of claims, of which each eighth takes the lowest priority.
    turns regclass,
    -- Where `max_waiting` is set: an upper bound on the waiting jobs. Each push and each return adds one, and nothing
    -- subtracts one: a push that finds it at the bound counts.
    waiting regclass,
    -- For each priority: no ready job is due before this time. Claims begin to read there, and so pass no dead
    -- entries of the index, which stay while any transaction is open. After these four, the head: up to this job of
    -- one priority, claims have taken all, so that the next ones do not meet those that are about to be taken. It is
    -- in two registers: the time of the job and its priority (2 bits); its place and the number of the tick (12
    -- bits). A job that is ready behind it (its push was committed late, or its claim is not committed) is found by
    -- the next tick, and by a claim that finds too few.
    --
    -- Then there are three times, until which some queries are left out (`note_look`): those of claims and peeks
    -- below the floors; those for what expires; and those of ticks below the floors. So they take a tenth of the
    -- time, however many dead entries a transaction keeps.
    --
    -- The tenth is the last time at which a job was seen in the line of its kind (`has_lines`), and the last one is 1 if
    -- the queue has ever had a job that is to run alone.
    floors regclass[]
);

-- `name`: q (the queue), t and a kind, k and a key, e (each key that has no limit of its own).
CREATE TABLE limits (
    queue int NOT NULL,
    name text COLLATE "C" NOT NULL,
    at_once int CHECK (at_once > 0),
    -- This many in this many nanoseconds, and this many at one moment. (NaN is above all numbers.)
    rate_count int CHECK (rate_count > 0),
    rate_per numeric CHECK (rate_per > 0 AND rate_per < 1e30),
    rate_burst int CHECK (rate_burst > 0),
    CHECK (num_nulls(rate_count, rate_per, rate_burst) IN (0, 3)),
    PRIMARY KEY (queue, name)
);

-- The tokens of a rate, in parts of which a millisecond brings a whole number: nothing is rounded.
CREATE TABLE bucket (
    queue int NOT NULL,
    name text COLLATE "C" NOT NULL,
    level numeric NOT NULL CHECK (level > -1e60 AND level < 1e60),
    unit numeric NOT NULL CHECK (unit > 0 AND unit < 1e30),
    since bigint NOT NULL CHECK (since >= 0),
    PRIMARY KEY (queue, name)
) WITH (fillfactor = 50);

-- A job that has not ended. "Scheduled" is `ready` with `at` in the future: nothing has to move it.
--
-- It has no checks, and as few indexes as possible: each statement that writes to it prepares all of them anew, and
-- locks beyond 16 relations are expensive. The pushes check what they are given.
CREATE TABLE job (
    number bigint PRIMARY KEY,
    queue int NOT NULL,
    state job_state NOT NULL,
    priority smallint NOT NULL DEFAULT 2,
    -- Ready, held, waiting: when it is due. Running: when its lease ends.
    at bigint NOT NULL,
    -- Its number in the order of the queue, a new one with each return; of a running job that of its claim.
    place bigint NOT NULL,
    -- Of the lease; null: it does not run. Random, so none comes twice, not even if a crash has lost a claim.
    token bigint,
    kind text COLLATE "C" NOT NULL,
    payload text NOT NULL,
    -- The id that the user gave. A job without one has the id `~` and its number.
    name text COLLATE "C",
    key text COLLATE "C",
    failures int NOT NULL DEFAULT 0,
    crashes int NOT NULL DEFAULT 0,
    pushed bigint NOT NULL,
    -- The time for which it was pushed, or tried again; 0: at once.
    due bigint NOT NULL DEFAULT 0,
    -- Whether the user named that time. Otherwise it was computed from the time of the call.
    named boolean,
    -- Since when it is in this state. Until it is due: when it was given that time.
    since bigint NOT NULL,
    -- When its lease was last renewed, in this run or an earlier one.
    renewed bigint,
    -- It runs once more after this run has succeeded, from this time on.
    resubmit bigint,
    -- When that was asked for; null: the user named the time.
    resubmitted bigint,
    error text,
    data text,
    meta text,
    -- The progress that its worker showed.
    fraction float8,
    note text,
    noted bigint,
    retry jsonb,
    retention bigint,
    -- The fingerprint while it refuses twins, and when that ends: c (a claim), d (the end), w (a time).
    uniq text,
    uniq_until "char",
    fingerprint text,
    -- It is skipped if a twin that began after this place has succeeded.
    skips_from bigint,
    root text COLLATE "C",
    root_at bigint,
    is_root boolean,
    expires bigint,
    cost int NOT NULL DEFAULT 1,
    -- The limit that holds it. Or o and its kind: it is due, and a claim of other kinds has found it and put it into
    -- the line of its kind. So those claims pass it only once.
    held_by text COLLATE "C",
    -- The jobs that it waits for, which are in `edge`, and what it does if one dies.
    pending int NOT NULL DEFAULT 0,
    on_dead text NOT NULL DEFAULT 'die',
    -- It runs, and takes a place in a limit of its kind or of the queue.
    counted boolean NOT NULL DEFAULT false,
    -- The end of its lease is a failure of a silent worker, and no crash.
    silent boolean NOT NULL DEFAULT false,
    -- Its runner stops: if the process ends now, that is no crash.
    stopping boolean NOT NULL DEFAULT false,
    -- Its process has died more than once while it ran, so it runs alone in its process.
    suspect boolean NOT NULL DEFAULT false,
    -- The process that has it. Of a job that is to run alone: the process that reserves it until this time, and
    -- begins no other job before its own have ended.
    worker text,
    alone_until bigint
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.5);

CREATE INDEX job_ready ON job (queue, priority, at, place) WHERE state = 'ready';
-- Held jobs by their limit, and those that wait for others, which no limit holds.
CREATE INDEX job_parked ON job (queue, held_by, priority, at, place) WHERE state IN ('held', 'waiting');
CREATE INDEX job_running ON job (queue, at) WHERE state = 'running';
CREATE UNIQUE INDEX job_name ON job (queue, name) WHERE name IS NOT NULL;
CREATE UNIQUE INDEX job_uniq ON job (queue, uniq) WHERE uniq IS NOT NULL;
-- The places of the limits that are taken: they are counted, so there is no counter to go wrong.
CREATE INDEX job_taken ON job (queue, key, kind) WHERE state = 'running' AND (key IS NOT NULL OR counted);
CREATE INDEX job_expires ON job (queue, expires) WHERE expires IS NOT NULL;
-- Jobs that are to run alone, and jobs that may turn out to be needless when they are claimed. No other index serves
-- those queries: without statistics, the planner would read all ready jobs.
CREATE INDEX job_special ON job (queue, suspect, at) WHERE suspect OR root IS NOT NULL OR skips_from IS NOT NULL;

-- A job that has ended, as it was then.
CREATE TABLE ended (
    died boolean NOT NULL,
    -- Until when it is kept; null: for ever.
    gone_at bigint,
    -- Why it was not run: executed, superseded.
    skipped text,
    -- It died, and still waited for the jobs of these ids, in their order: it waits for them if it is requeued.
    waited_for text[],
    -- The last ones, so that a later version adds columns at the end of both.
    LIKE job INCLUDING DEFAULTS,
    PRIMARY KEY (number)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000);
-- An ended job has no lease: its token is the one with which its worker ended it. Its state is `died`.
ALTER TABLE ended ALTER COLUMN state DROP NOT NULL, ALTER COLUMN at DROP NOT NULL;
CREATE INDEX ended_gone ON ended (queue, died, gone_at, number);
CREATE INDEX ended_name ON ended (queue, name) WHERE name IS NOT NULL;

-- A job waits for another one.
CREATE TABLE edge (
    awaited bigint NOT NULL,
    job bigint NOT NULL,
    PRIMARY KEY (awaited, job)
);
CREATE INDEX edge_job ON edge (job);

-- Doorbells: "read the jobs that wait for this one". A push rings, since the end may not have seen its edge, and so
-- does each end. So neither of them waits for the other one's transaction.
--
-- Its numbers are a register, too: as long as none was taken, no job waits for another one.
CREATE SEQUENCE edge_bells;
CREATE TABLE edge_bell (
    id bigint PRIMARY KEY DEFAULT nextval('edge_bells'),
    queue int NOT NULL,
    awaited bigint NOT NULL,
    died boolean,
    -- The jobs up to this number have been told. After all of them, those after that one are told again.
    behind bigint NOT NULL DEFAULT 0,
    anew bigint
);
CREATE INDEX edge_bell_queue ON edge_bell (queue, id);
CREATE INDEX edge_bell_awaited ON edge_bell (awaited, id);

-- Doorbells of limits: "from this time on there may be a place, or a token". Ends append one for each limit that they
-- leave, and the next claim takes all that are equal. No index keeps two equal ones apart: an end in an open
-- transaction would hold up the others of its key.
CREATE TABLE freed (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue int NOT NULL,
    at bigint NOT NULL,
    name text COLLATE "C" NOT NULL
);
CREATE INDEX freed_at ON freed (queue, at, id);

-- A fingerprint that refuses twins for a time, whatever became of the job.
CREATE TABLE mark (
    queue int NOT NULL, fingerprint text NOT NULL, until bigint NOT NULL, job text NOT NULL,
    since bigint NOT NULL, PRIMARY KEY (queue, fingerprint)
);
-- The last run of a fingerprint that has succeeded. Of several rows the highest place counts. No index keeps two
-- apart: an end in an open transaction would hold up others of its fingerprint.
CREATE TABLE executed (
    queue int NOT NULL, fingerprint text NOT NULL, until bigint NOT NULL, place bigint NOT NULL
);
-- The newest time of a root.
CREATE TABLE root (
    queue int NOT NULL, signature text COLLATE "C" NOT NULL, until bigint NOT NULL, at bigint NOT NULL,
    PRIMARY KEY (queue, signature)
);
-- Ids that are gone, so that a job which waits for one knows that it was there.
CREATE TABLE gone (
    queue int NOT NULL, name text COLLATE "C" NOT NULL, until bigint NOT NULL, since bigint NOT NULL,
    PRIMARY KEY (queue, name)
);
CREATE TABLE note (
    queue int NOT NULL, place text COLLATE "C" NOT NULL, value text NOT NULL, until bigint NOT NULL DEFAULT 0,
    since bigint NOT NULL DEFAULT 0, PRIMARY KEY (queue, place)
);
CREATE INDEX mark_until ON mark (queue, until);
CREATE INDEX executed_twins ON executed (queue, fingerprint);
CREATE INDEX executed_until ON executed (queue, until);
CREATE INDEX root_until ON root (queue, until);
CREATE INDEX gone_until ON gone (queue, until);
CREATE INDEX note_until ON note (queue, until) WHERE until > 0;

-- The durations of the attempts of a kind, in nanoseconds.
CREATE TABLE average (
    queue int NOT NULL, kind text COLLATE "C" NOT NULL, count bigint NOT NULL, mean bigint NOT NULL,
    last bigint NOT NULL, PRIMARY KEY (queue, kind)
);

-- A schedule. With `every`, a tick of the server makes its jobs. Without it, the programs that have registered it do:
-- they know cron expressions and time zones, and the row decides which one of them.
CREATE TABLE periodic (
    queue int NOT NULL,
    name text COLLATE "C" NOT NULL,
    last bigint NOT NULL,
    run text,
    skipped bigint NOT NULL DEFAULT 0,
    schedule text,
    -- The next tick of a schedule without `every`, as computed by the program that made the last one.
    next bigint,
    every bigint CHECK (every > 0),
    kind text,
    payload text,
    settings jsonb,
    PRIMARY KEY (queue, name)
);

-- Rows with values that no function writes: changed by hand, or by a failing disk. A row that makes a call fail is
-- put here, so that it holds up nothing.
CREATE TABLE damaged (
    -- That of the job; of a schedule, one of its own.
    number bigint PRIMARY KEY,
    queue int NOT NULL,
    -- The table that it was in: job or periodic.
    was text NOT NULL,
    -- The id of the job, or the name of the schedule.
    id text COLLATE "C" NOT NULL,
    kind text COLLATE "C",
    payload text,
    at bigint NOT NULL,
    reason text NOT NULL,
    -- The row as it was: JSON as text.
    row text NOT NULL
);
CREATE INDEX damaged_id ON damaged (queue, was, id);

-- The workers, as they were last heard of. Each one writes its row with calls that it makes anyway: see
-- `note_worker`. No call waits for a row, and no rule of the queue reads one.
CREATE TABLE worker (
    queue int NOT NULL,
    -- The worker draws it, since names may be equal. That of a worker which sends none comes from its name.
    number bigint NOT NULL,
    -- The name under which it claims.
    name text COLLATE "C",
    process int,
    host text,
    language text,
    version text,
    -- Null: all, or more than are kept.
    kinds text[],
    -- Null: it has no bound, or has not said. How many of them are busy is counted: the running jobs that it has.
    slots int,
    -- The slots whose jobs were removed or taken back, and still run.
    stuck int NOT NULL DEFAULT 0,
    began bigint NOT NULL,
    seen bigint NOT NULL,
    -- It claims no more.
    stopping boolean NOT NULL DEFAULT false,
    PRIMARY KEY (queue, number)
) WITH (fillfactor = 50);

-- The jobs of a large queue, as they were last counted.
CREATE TABLE tally (
    queue int PRIMARY KEY,
    at bigint NOT NULL,
    -- How many milliseconds that took.
    took bigint NOT NULL,
    scheduled bigint NOT NULL,
    ready bigint NOT NULL,
    running bigint NOT NULL,
    finished bigint NOT NULL,
    dead bigint NOT NULL,
    waiting bigint NOT NULL,
    -- The limit that holds the most of the ready ones, and how many.
    held_by text COLLATE "C",
    held bigint
) WITH (fillfactor = 50);

-- The time of now. A test replaces this function and the next one.
CREATE FUNCTION clock() RETURNS bigint LANGUAGE sql AS
$$ SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint $$;

-- The floors of a queue. Read before a statement: within it, the volatile function would be a filter and no bound.
CREATE FUNCTION floors_of(p_floors regclass[]) RETURNS bigint[] LANGUAGE sql AS
$$ SELECT ARRAY[pg_sequence_last_value(p_floors[1]), pg_sequence_last_value(p_floors[2]),
    pg_sequence_last_value(p_floors[3]), pg_sequence_last_value(p_floors[4])] $$;

-- The floors from which a claim or a peek reads (`p_place` 7) or a tick (9): from a distance below them for late
-- commits, or from the floors themselves if such a query has cost much a short time ago.
CREATE FUNCTION looks_from(p_floors regclass[], p_place int, p_below bigint, p_now bigint) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE v_floors bigint[] := floors_of(p_floors);
BEGIN
    IF is_dear(p_floors, p_place, p_now) THEN RETURN v_floors; END IF;
    RETURN ARRAY[v_floors[1] - p_below, v_floors[2] - p_below, v_floors[3] - p_below, v_floors[4] - p_below];
END $$;

-- Whether such a query is to be left out now. A time that is far off is one of before the clock was set back.
CREATE FUNCTION is_dear(p_floors regclass[], p_place int, p_now bigint) RETURNS boolean LANGUAGE sql AS
$$ SELECT coalesce(pg_sequence_last_value(p_floors[p_place]), 0) BETWEEN p_now + 1 AND p_now + 60000 $$;

-- The entries that this transaction has passed in the indexes whose dead entries pile up: a measure of the work that
-- is the same on each machine.
CREATE FUNCTION passed_ready() RETURNS bigint LANGUAGE sql AS $$ SELECT pg_stat_get_xact_tuples_returned('job_ready'::regclass) $$;

CREATE FUNCTION passed_ends() RETURNS bigint LANGUAGE sql AS
$$ SELECT pg_stat_get_xact_tuples_returned('job_running'::regclass) + pg_stat_get_xact_tuples_returned('job_expires'::regclass)
    + pg_stat_get_xact_tuples_returned('ended_gone'::regclass) $$;

-- A thousand entries take about a millisecond.
CREATE FUNCTION is_much(p_passed bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT coalesce(p_passed > 5000, false) $$;

-- Notes what a query has cost that ends now. The first query after much work passes many entries. It clears them from
-- the index for the next queries, unless an open transaction keeps them. So queries are left out only after the
-- second expensive one.
CREATE FUNCTION note_look(p_floors regclass[], p_place int, p_passed bigint, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_last bigint := pg_sequence_last_value(p_floors[p_place]);
BEGIN
    IF NOT is_much(p_passed) AND v_last = 0 OR current_setting('transaction_read_only') = 'on' THEN RETURN; END IF;
    PERFORM setval(p_floors[p_place], CASE WHEN NOT is_much(p_passed) THEN 0
        -- Below 0: minus the end of the last one.
        WHEN p_now - abs(v_last) BETWEEN 0 AND 2000 THEN p_now + least(p_passed / 100, 60000)
        -- Another one has noted that while this one ran.
        WHEN v_last BETWEEN p_now + 1 AND p_now + 60000 OR -v_last BETWEEN p_now + 1 AND clock() THEN v_last
        ELSE -clock() END);
END $$;

-- A million years in place of a longer time: sums with it are still numbers.
CREATE FUNCTION bounded(p_time bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN p_time > 1::bigint << 55 THEN 1::bigint << 55 ELSE p_time END $$;

-- Only at these levels does each statement see what was committed before it, as the rules need it.
CREATE FUNCTION is_read_committed() RETURNS boolean LANGUAGE sql AS
$$ SELECT current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') $$;

CREATE FUNCTION check_isolation(p_what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT is_read_committed() THEN
        RAISE 'waterline: % needs a transaction of the isolation level READ COMMITTED, and this one is %', p_what,
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'WQ010';
    END IF;
END $$;

CREATE FUNCTION chance() RETURNS float8 LANGUAGE sql AS $$ SELECT random() $$;

-- The key of an advisory lock of a queue.
CREATE FUNCTION lock_of(p_what text, p_queue int) RETURNS bigint LANGUAGE sql AS
$$ SELECT hashtextextended('waterline ' || current_schema() || ' ' || p_what, p_queue) $$;

-- The channel on which a queue rings: LISTEN needs a connection of its own, without a pooler.
CREATE FUNCTION channel_of(p_queue int) RETURNS text LANGUAGE sql AS
$$ SELECT 'waterline_' || left(md5(current_schema()), 8) || '_' || p_queue $$;

-- Rings if a caller listens, and not twice within 20 ms: all commits of the cluster that notify take turns.
CREATE FUNCTION ring(p_queue int, p_bell regclass) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_bell bigint := pg_sequence_last_value(p_bell); v_now bigint;
BEGIN
    IF v_bell IS NULL OR v_bell = 0 THEN RETURN; END IF;
    v_now := floor(extract(epoch FROM clock_timestamp()) * 1000);
    IF v_bell > v_now OR (v_bell < 0 AND v_now + v_bell BETWEEN 20 AND 5000) THEN
        PERFORM setval(p_bell, -v_now);
        PERFORM pg_notify(channel_of(p_queue), '');
    END IF;
END $$;

-- Says that the caller listens for this long. It queries once more after this call, and then waits.
CREATE FUNCTION arm_bell(p_bell regclass, p_for bigint) RETURNS void LANGUAGE sql AS
$$ SELECT setval(p_bell, greatest(pg_sequence_last_value(p_bell), floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + p_for)) $$;

-- A kind of answer that many calls have, one row for each thing. `what` says what the other columns hold; those that
-- a row does not name are null.
--
-- | what     | says                                         | columns                                                                |
-- |----------|----------------------------------------------|------------------------------------------------------------------------|
-- | pushed   | a job was pushed                             | id, state; outcome: added, duplicate, rescheduled or resubmit          |
-- | next     | those after it are of the next queue         |                                                                        |
-- | ended    | some of the ends that were asked for         | outcome: counted, halt, or finished (counted, with the data of the     |
-- |          |                                              | caller, in place of a row `told`); state: null if the jobs are gone;   |
-- |          |                                              | more: their places among the ends, from 1 on, with commas              |
-- | finished | all ends have been counted: no row `ended`   | state: the one that all jobs are in; null: they are gone               |
-- | claimed  | the caller has this job now                  | number, id (null: none of the user's), token, kind, payload (null: it  |
-- |          |                                              | did not fit, see `load`), data, error, failures, crashes, pushed, due, |
-- |          |                                              | since; priority: that (2 bits) and the place in the claim; more: what  |
-- |          |                                              | few jobs have, as JSON                                                 |
-- | told     | a job is in another state                    | id, state (null: it is gone), data, error; outcome: anew, or null      |
-- | paused   | the queue is                                 | number: until when                                                     |
-- | line     | something for the log                        | outcome: died, taken_back, held, skipped, unmade, set_back, damaged or |
-- |          |                                              | damaged_schedule; id, kind, failures, error (or the limit, or the why) |
-- | more     | things that did not fit: waiters read them   | number: how many; token: how many lines for the log are among them     |
-- | lined    | jobs of others' kinds went into their lines  | kind: one that no worker takes                                         |
-- | again    | there is more to do than a call does         |                                                                        |
-- | short    | fewer jobs than wanted; the peek holds     |                                                                        |
-- | full     | as many jobs as wanted; the peek holds     |                                                                        |
-- | peek     | what a worker may look for                 | id: the queue; since: now; number: when to look next; due: when a job  |
-- |          |                                              | becomes due; token: when one expires; pushed: the end of the pause;    |
-- |          |                                              | more: words, each if it is true: ready, full (a limit of the queue, or |
-- |          |                                              | a job that runs alone), limited, room (for a push), kinds (the caller's|
-- |          |                                              | have a line, or a place in a limit), others (so may those of others)   |
CREATE TYPE answer AS (
    what text, number bigint, id text, outcome text, state text, token bigint, kind text, payload text,
    data text, error text, failures int, crashes int, pushed bigint, due bigint, since bigint, priority int,
    more text
);

-- These functions are one expression each, so that a caller's plan contains them: a call would plan them each time.
CREATE FUNCTION told(p_id text, p_state text, p_data text DEFAULT NULL, p_error text DEFAULT NULL,
    p_outcome text DEFAULT NULL) RETURNS answer LANGUAGE sql AS
$$ SELECT ROW('told', NULL, p_id, p_outcome, p_state, NULL, NULL, NULL, p_data, p_error,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL)::answer $$;

CREATE FUNCTION line(p_outcome text, p_id text, p_kind text, p_failures int, p_error text)
RETURNS answer LANGUAGE sql AS
$$ SELECT ROW('line', NULL, p_id, p_outcome, NULL, NULL, p_kind, NULL, NULL, left(p_error, 1000),
    p_failures, NULL, NULL, NULL, NULL, NULL, NULL)::answer $$;

-- An answer that is only a word: finished (all have ended well, and are in this state), again, lined or short.
CREATE FUNCTION word(p_what text, p_state text DEFAULT NULL) RETURNS answer LANGUAGE sql AS
$$ SELECT ROW(p_what, NULL, NULL, NULL, p_state, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL)::answer $$;

CREATE FUNCTION id_of(p_name text, p_number bigint) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT coalesce(p_name, '~' || p_number::text) $$;

-- The number of the job with this id that has not ended.
CREATE FUNCTION number_of(p_queue int, p_id text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE v_number bigint;
BEGIN
    IF p_id ~ '^~[1-9][0-9]{0,17}$' THEN
        SELECT number INTO v_number FROM job
        WHERE number = substr(p_id, 2)::bigint AND queue = p_queue AND name IS NULL;
    ELSE
        SELECT number INTO v_number FROM job WHERE queue = p_queue AND name = p_id;
    END IF;
    RETURN v_number;
END $$;

-- The same of one that has ended.
CREATE FUNCTION ended_of(p_queue int, p_id text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE v_number bigint;
BEGIN
    IF p_id ~ '^~[1-9][0-9]{0,17}$' THEN
        SELECT number INTO v_number FROM ended
        WHERE number = substr(p_id, 2)::bigint AND queue = p_queue AND name IS NULL;
    ELSE
        SELECT number INTO v_number FROM ended
        WHERE queue = p_queue AND name = p_id ORDER BY number DESC LIMIT 1;
    END IF;
    RETURN v_number;
END $$;

-- The same, or of one that was set aside, unless there is another one.
CREATE FUNCTION any_of(p_queue int, p_id text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE v_number bigint := coalesce(number_of(p_queue, p_id), ended_of(p_queue, p_id));
BEGIN
    IF v_number IS NULL THEN
        SELECT d.number INTO v_number FROM damaged d WHERE d.queue = p_queue AND d.was = 'job' AND d.id = p_id ORDER BY d.number DESC LIMIT 1;
    END IF;
    RETURN v_number;
END $$;

-- The state as it is shown. A job that a limit holds was due when a claim found it.
CREATE FUNCTION shown(p_state job_state, p_at bigint, p_now bigint) RETURNS text
LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE p_state WHEN 'running' THEN 'running' WHEN 'waiting' THEN 'waiting' WHEN 'held' THEN 'ready'
    ELSE CASE WHEN p_at <= p_now THEN 'ready' ELSE 'scheduled' END END $$;

CREATE FUNCTION queue_of(p_queue text) RETURNS queue LANGUAGE plpgsql AS $$
DECLARE v_queue queue;
BEGIN
    SELECT * INTO v_queue FROM queue WHERE name = p_queue;
    IF NOT FOUND THEN
        RAISE 'waterline: there is no queue "%": make it with create_queue', left(p_queue, 255) USING ERRCODE = 'WQ001';
    END IF;
    RETURN v_queue;
END $$;
