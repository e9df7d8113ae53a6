-- What was counted day by day, for the rate of orphans: a deployment is compared with its own first month.
CREATE TABLE "retrysafe".day (
    day     bigint PRIMARY KEY,              -- days since 1970, on the database's clock
    claims  bigint NOT NULL,
    orphans bigint NOT NULL
);
