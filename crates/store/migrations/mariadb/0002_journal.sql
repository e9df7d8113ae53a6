-- Requests of several steps: what is written down between the steps, in the commits that it speaks of. The entries are
-- kept apart from the key table, so that a renewal that arrives late takes no recovery point back.
CREATE TABLE IF NOT EXISTS retrysafe_journal (
    operation BINARY(16)      NOT NULL COMMENT 'the status id of the record: it survives takeovers',
    seq       INT             NOT NULL COMMENT 'two attempts that write the same place cannot both succeed',
    at_ms     BIGINT          NOT NULL,
    namespace VARBINARY(64)       NULL COMMENT 'the address, in the first entry only',
    account   VARBINARY(1024)     NULL,
    `key`     VARBINARY(1024)     NULL,
    data      MEDIUMBLOB      NOT NULL COMMENT 'the entry in its versioned codec',
    PRIMARY KEY (operation, seq),
    KEY retrysafe_journal_opened (seq, at_ms)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET binary;

-- Effects that leave after the commit that staged them.
CREATE TABLE IF NOT EXISTS retrysafe_staged (
    operation BINARY(16)     NOT NULL,
    name      VARBINARY(255) NOT NULL,
    `key`     VARBINARY(64)  NOT NULL COMMENT 'the idempotency key that it is sent with, at every attempt',
    payload   MEDIUMBLOB     NOT NULL,
    state     TINYINT        NOT NULL COMMENT '0 waiting, 1 sent, 2 given up',
    due_ms    BIGINT         NOT NULL,
    tries     INT            NOT NULL,
    taken     BINARY(16)         NULL COMMENT 'by which call of a drainer: there is no UPDATE ... RETURNING',
    failure   BLOB               NULL,
    PRIMARY KEY (operation, name),
    KEY retrysafe_staged_due (state, due_ms),
    KEY retrysafe_staged_taken (taken)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET binary;

-- What people did about keys, with who and why: it outlives records and journals. It is only added to; grant no more than
-- INSERT and SELECT on it. (Triggers would need a privilege that a migration seldom has.)
CREATE TABLE IF NOT EXISTS retrysafe_act (
    number    BIGINT          NOT NULL PRIMARY KEY AUTO_INCREMENT,
    at_ms     BIGINT          NOT NULL,
    operation BINARY(16)      NOT NULL COMMENT 'the status id of the record',
    namespace VARBINARY(64)   NOT NULL,
    account   VARBINARY(1024) NOT NULL,
    `key`     VARBINARY(1024) NOT NULL,
    act       VARBINARY(16)   NOT NULL COMMENT 'resume, resolve, release',
    who       VARBINARY(255)  NOT NULL,
    why       BLOB            NOT NULL,
    evidence  BLOB                NULL,
    KEY retrysafe_act_address (namespace, account, `key`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET binary;
