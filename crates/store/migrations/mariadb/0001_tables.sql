-- The tables of retrysafe, in the database that the connection names. Every statement can be run again after an attempt
-- that broke off: MariaDB commits each by itself.

-- Uniqueness lives here, in one table that is not partitioned: with partitions by time, a request at 23:59 and its retry
-- at 00:01 would both win. Address columns are bytes: under a _ci collation `abc` and `ABC` would be one key, and under
-- any collation that pads, `abc` and `abc ` too. The primary key is 64 + 1024 + 1024 bytes at most, of InnoDB's 3072.
CREATE TABLE IF NOT EXISTS retrysafe_key (
    namespace    VARBINARY(64)   NOT NULL,
    account      VARBINARY(1024) NOT NULL,
    `key`        VARBINARY(1024) NOT NULL,
    attempt      BINARY(16)      NOT NULL COMMENT 'guards every write of the holder',
    status       BINARY(16)      NOT NULL COMMENT 'the random id of the status page',
    fence        BIGINT          NOT NULL COMMENT 'epoch in the upper 16 bits, then a number that only grows',
    state        TINYINT         NOT NULL COMMENT '0 in flight, 1 uncertain, 2 completed',
    due_ms       BIGINT              NULL COMMENT 'end of the lease, or when it may be reaped; ms since 1970',
    expires_ms   BIGINT              NULL COMMENT 'end of the replay window',
    resource     BLOB                NULL COMMENT 'what the window is bound to',
    response_day INT                 NULL COMMENT 'where a long body is, in days since 1970',
    data         MEDIUMBLOB      NOT NULL COMMENT 'the record in the versioned codec',
    PRIMARY KEY (namespace, account, `key`),
    KEY retrysafe_key_status (status),
    KEY retrysafe_key_due (state, due_ms),
    KEY retrysafe_key_resource (resource(255))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET binary;

-- One sequence for all claims, so that a fence outlives its record. A number is taken by the statement that claims and
-- seen by nobody before that is committed; the log is flushed in order, so the sequence is durable before the claim is.
CREATE SEQUENCE IF NOT EXISTS retrysafe_fence START WITH 1 INCREMENT BY 1 CACHE 1000 NOCYCLE ENGINE = InnoDB;

-- Bodies that do not fit into a row, by the day on which they may be reaped: reaping a day is dropping a partition. Days
-- are split off the last partition ahead of time; until then nothing is refused for want of one.
CREATE TABLE IF NOT EXISTS retrysafe_response (
    day     INT        NOT NULL,
    attempt BINARY(16) NOT NULL,
    body    LONGBLOB   NOT NULL,
    PRIMARY KEY (day, attempt)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET binary
PARTITION BY RANGE (day) (PARTITION later VALUES LESS THAN MAXVALUE);

-- The store's own row.
CREATE TABLE IF NOT EXISTS retrysafe_meta (
    only_row TINYINT NOT NULL PRIMARY KEY,
    clock_ms BIGINT      NULL COMMENT 'the latest time told, at most a few seconds old',
    CHECK (only_row = 1)
) ENGINE = InnoDB;

INSERT INTO retrysafe_meta (only_row) SELECT 1 FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM retrysafe_meta);

-- Which secret of fingerprints goes by which number: a process with another one would take every retry for another
-- request. What is kept proves that a secret is the same and tells nothing else about it.
CREATE TABLE IF NOT EXISTS retrysafe_deployment_key (
    number BIGINT     NOT NULL PRIMARY KEY,
    proof  BINARY(32) NOT NULL
) ENGINE = InnoDB;

-- The effect ledger: written by business transactions, apart from the claim, and on purpose without a unique index. More
-- than one row for (namespace, account, key, step) is an effect that happened twice.
CREATE TABLE IF NOT EXISTS retrysafe_effect (
    id        BIGINT          NOT NULL PRIMARY KEY AUTO_INCREMENT,
    namespace VARBINARY(64)   NOT NULL,
    account   VARBINARY(1024) NOT NULL,
    `key`     VARBINARY(1024) NOT NULL,
    step      VARBINARY(255)  NOT NULL,
    attempt   BINARY(16)      NOT NULL,
    at_ms     BIGINT          NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000),
    KEY retrysafe_effect_step (namespace, account, `key`, step, at_ms),
    KEY retrysafe_effect_at (at_ms)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET binary;

-- For people. Never write through it, and never delete a row that is not completed: that is a second run.
CREATE OR REPLACE VIEW retrysafe_readable AS
SELECT CONVERT(namespace USING utf8mb4)                                            AS namespace,
       CONVERT(account USING utf8mb4)                                              AS account,
       CONVERT(`key` USING utf8mb4)                                                AS `key`,
       CASE state WHEN 0 THEN 'in flight' WHEN 1 THEN 'uncertain' ELSE 'completed' END AS state,
       LOWER(HEX(attempt))                                                         AS attempt,
       fence,
       CASE WHEN state = 0 THEN FROM_UNIXTIME(due_ms / 1000) END                   AS lease_ends,
       FROM_UNIXTIME(expires_ms / 1000)                                            AS window_ends,
       CASE WHEN state = 2 THEN FROM_UNIXTIME(due_ms / 1000) END                   AS reaped_from,
       CONVERT(resource USING utf8mb4)                                             AS resource,
       response_day IS NOT NULL                                                    AS body_apart,
       LENGTH(data)                                                                AS record_bytes
FROM retrysafe_key;
