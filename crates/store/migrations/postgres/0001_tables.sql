-- The tables of retrysafe. Names are qualified throughout, so that no search_path matters; another schema is named by
-- replacing "retrysafe". in this file, which is what `retrysafe migrate` does.

-- Uniqueness lives here, in one table that is not partitioned: with partitions by time, a request at 23:59 and its retry
-- at 00:01 would both win. Address columns are bytes, so that no collation decides what is the same key.
CREATE TABLE "retrysafe".key (
    namespace    bytea    NOT NULL,
    account      bytea    NOT NULL,
    key          bytea    NOT NULL,
    attempt      bytea    NOT NULL,          -- guards every write of the holder
    status       bytea,                      -- the random id of the status page; null where no page was ever named
    fence        bigint   NOT NULL,          -- epoch in the upper 16 bits, then a number that only grows
    state        smallint NOT NULL,          -- 0 in flight, 1 uncertain, 2 completed
    due_ms       bigint,                     -- end of the lease, or when it may be reaped; milliseconds since 1970
    expires_ms   bigint,                     -- end of the replay window
    resource     bytea,                      -- what the window is bound to
    response_day bigint,                     -- where a long body is, in days since 1970
    data         bytea    NOT NULL,          -- the record in the versioned codec
    PRIMARY KEY (namespace, account, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);

CREATE INDEX key_status ON "retrysafe".key (status) WHERE status IS NOT NULL;
CREATE INDEX key_due ON "retrysafe".key (state, due_ms);
CREATE INDEX key_resource ON "retrysafe".key (namespace, account, resource) WHERE resource IS NOT NULL;
CREATE INDEX key_response_day ON "retrysafe".key (response_day) WHERE response_day IS NOT NULL;

-- One sequence for all claims, so that a fence outlives its record. It is read inside the statement that claims, and seen
-- by nobody before that is committed.
CREATE SEQUENCE "retrysafe".fence AS bigint MINVALUE 1 NO CYCLE CACHE 1;

-- Bodies that do not fit into a row, by the day on which they may be reaped: reaping a day is dropping a table.
CREATE TABLE "retrysafe".response (
    day     bigint NOT NULL,
    attempt bytea  NOT NULL,
    body    bytea  NOT NULL,
    PRIMARY KEY (day, attempt)
) PARTITION BY LIST (day);

-- For days that nobody has made a table for: nothing is ever refused for want of one.
CREATE TABLE "retrysafe".response_other PARTITION OF "retrysafe".response DEFAULT;

-- The store's own row.
CREATE TABLE "retrysafe".meta (
    only_row    smallint PRIMARY KEY CHECK (only_row = 1),
    clock_ms    bigint,                      -- the latest time told, at most a few seconds old
    lock_secret bytea NOT NULL               -- lock ids are derived with it, so that nobody can choose keys that collide
);

INSERT INTO "retrysafe".meta (only_row, lock_secret)
VALUES (1, decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'));

-- Which secret of fingerprints goes by which number: a process with another one would take every retry for another
-- request. What is kept proves that a secret is the same and tells nothing else about it.
CREATE TABLE "retrysafe".deployment_key (
    number bigint PRIMARY KEY,
    proof  bytea NOT NULL
);

-- The effect ledger: written by business transactions, apart from the claim, and on purpose without a unique index. More
-- than one row for (namespace, account, key, step) is an effect that happened twice.
CREATE TABLE "retrysafe".effect (
    namespace bytea  NOT NULL,
    account   bytea  NOT NULL,
    key       bytea  NOT NULL,
    step      bytea  NOT NULL,
    attempt   bytea  NOT NULL,
    at_ms     bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint
);

CREATE INDEX effect_step ON "retrysafe".effect (namespace, account, key, step, at_ms);
CREATE INDEX effect_at ON "retrysafe".effect (at_ms);

-- For people. Never write through it, and never delete a row that is not completed: that is a second run.
CREATE VIEW "retrysafe".readable AS
SELECT convert_from(namespace, 'UTF8')                                        AS namespace,
       convert_from(account, 'UTF8')                                          AS account,
       convert_from(key, 'UTF8')                                              AS key,
       CASE state WHEN 0 THEN 'in flight' WHEN 1 THEN 'uncertain' ELSE 'completed' END AS state,
       encode(attempt, 'hex')                                                 AS attempt,
       fence,
       CASE WHEN state = 0 THEN to_timestamp(due_ms / 1000.0) END             AS lease_ends,
       to_timestamp(expires_ms / 1000.0)                                      AS window_ends,
       CASE WHEN state = 2 THEN to_timestamp(due_ms / 1000.0) END             AS reaped_from,
       convert_from(resource, 'UTF8')                                         AS resource,
       response_day IS NOT NULL                                               AS body_apart,
       length(data)                                                           AS record_bytes
FROM "retrysafe".key;
