-- The tables of progress, and the version of the schema. The word in braces stands for the name of the schema.
--
-- An unsigned 64-bit number (an index, a token) is stored with its bits as a bigint: the same number below 2^63.

-- Two callers that run this at once take turns. (The key is "waterln" in bytes: that of `migrate`.)
SELECT pg_advisory_xact_lock(x'77617465726c6e'::bigint);

CREATE SCHEMA IF NOT EXISTS {schema};

-- The versions that these tables have had.
CREATE TABLE {schema}.version (
    version bigint PRIMARY KEY,
    made timestamptz NOT NULL DEFAULT now(),
    -- The oldest version of a program that may use these tables, so that programs of two versions can run at once
    -- while one replaces the other. Null: only this one.
    serves bigint
);

-- The names: which process has each, until when, and what is done.
CREATE TABLE {schema}.progress (
    name text PRIMARY KEY,
    -- The number of the life that has the name. It grows, and each job gets it (`Job::fence`).
    epoch bigint NOT NULL DEFAULT 0,
    -- A random number of this life. After a failover to a server that lagged behind, an epoch may be handed out
    -- twice, so each write compares both. 0: the name was given back.
    token bigint NOT NULL DEFAULT 0,
    -- The history of the server (`pg_walfile_name`) in which the life began.
    timeline bigint NOT NULL DEFAULT 0,
    holder text NOT NULL DEFAULT '',
    -- By the clock of this server.
    expires timestamptz NOT NULL DEFAULT '-infinity',
    -- When that was written. If this is ahead of the clock, the clock was set back since.
    renewed timestamptz NOT NULL DEFAULT '-infinity',
    -- The number of saves. It decides about a commit whose answer was lost.
    saves bigint NOT NULL DEFAULT 0,
    -- The highest index of the unbroken run that is done; null if there is none.
    watermark bigint,
    -- The lowest index that is not done; null before the first save.
    next bigint,
    -- When the watermark last moved.
    moved timestamptz
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);

-- The jobs that are done above `next`, 8192 to a row: bit i of piece p is job 8192 * p + i. No bytes: all are done.
CREATE TABLE {schema}.done (
    name text NOT NULL,
    piece bigint NOT NULL,
    bits bytea NOT NULL,
    PRIMARY KEY (name, piece)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);

-- Small rows about single jobs: parked ones, crashes. Only waterline reads their bytes.
CREATE TABLE {schema}.record (
    name text NOT NULL,
    key bytea NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (name, key)
);

-- The moves made by hand.
CREATE TABLE {schema}.move (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind text NOT NULL,
    "from" bigint,
    "to" bigint NOT NULL,
    reason text NOT NULL
);
CREATE INDEX move_of ON {schema}.move (name, id);

-- What an operator asked for while a consumer had the name. The consumer does it at its next save.
CREATE TABLE {schema}.wish (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    kind text NOT NULL,
    index bigint NOT NULL,
    UNIQUE (name, kind, index)
);

INSERT INTO {schema}.version (version) VALUES (1);
