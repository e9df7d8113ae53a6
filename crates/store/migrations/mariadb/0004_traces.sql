-- What a person wants to know of a key besides its journal: when its effects were staged and how their sending ended, and how
-- often its answer was replayed. Null stands in rows of builds that did not write it down.
ALTER TABLE retrysafe_staged
    ADD COLUMN IF NOT EXISTS staged_ms BIGINT NULL,
    ADD COLUMN IF NOT EXISTS ended_ms BIGINT NULL;

-- One row for each operation, however often it is replayed. Added to now and then, from what processes counted.
CREATE TABLE IF NOT EXISTS retrysafe_replays (
    operation BINARY(16) NOT NULL PRIMARY KEY,
    times     BIGINT     NOT NULL,
    first_ms  BIGINT     NOT NULL,
    last_ms   BIGINT     NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET binary;
