-- What was counted day by day, for the rate of orphans: a deployment is compared with its own first month.
CREATE TABLE IF NOT EXISTS retrysafe_day (
    day     BIGINT NOT NULL PRIMARY KEY COMMENT 'days since 1970, on the database clock',
    claims  BIGINT NOT NULL,
    orphans BIGINT NOT NULL
) ENGINE = InnoDB;
