-- Requests of several steps: what is written down between the steps, in the commits that it speaks of. The entries are
-- kept apart from the key table, so that a renewal that arrives late takes no recovery point back.
CREATE TABLE "retrysafe".journal (
    operation bytea  NOT NULL,              -- the status id of the record: it survives takeovers
    seq       bigint NOT NULL,              -- two attempts that write the same place cannot both succeed
    at_ms     bigint NOT NULL,
    namespace bytea,                        -- the address, in the first entry only
    account   bytea,
    key       bytea,
    data      bytea  NOT NULL,              -- the entry in its versioned codec
    PRIMARY KEY (operation, seq)
);

CREATE INDEX journal_opened ON "retrysafe".journal (at_ms) WHERE seq = 0;

-- Effects that leave after the commit that staged them.
CREATE TABLE "retrysafe".staged (
    operation bytea  NOT NULL,
    name      bytea  NOT NULL,
    key       bytea  NOT NULL,              -- the idempotency key that it is sent with, at every attempt
    payload   bytea  NOT NULL,
    state     bigint NOT NULL,              -- 0 waiting, 1 sent, 2 given up
    due_ms    bigint NOT NULL,
    tries     bigint NOT NULL,
    failure   bytea,
    PRIMARY KEY (operation, name)
);

CREATE INDEX staged_due ON "retrysafe".staged (due_ms) WHERE state = 0;
