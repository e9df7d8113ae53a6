-- What a person wants to know of a key besides its journal: when its effects were staged and how their sending ended, and how
-- often its answer was replayed. Null stands in rows of builds that did not write it down.
ALTER TABLE "retrysafe".staged ADD COLUMN staged_ms bigint, ADD COLUMN ended_ms bigint;

-- One row for each operation, however often it is replayed. Added to now and then, from what processes counted.
CREATE TABLE "retrysafe".replays (
    operation bytea  PRIMARY KEY,
    times     bigint NOT NULL,
    first_ms  bigint NOT NULL,
    last_ms   bigint NOT NULL
);
