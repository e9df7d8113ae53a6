-- What people did about keys, with who and why: it outlives records and journals, and nothing of it is changed or deleted.
CREATE TABLE "retrysafe".act (
    number    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_ms     bigint NOT NULL,
    operation bytea  NOT NULL,              -- the status id of the record
    namespace bytea  NOT NULL,
    account   bytea  NOT NULL,
    key       bytea  NOT NULL,
    act       text   NOT NULL,              -- resume, resolve, release
    who       text   NOT NULL,
    why       text   NOT NULL,
    evidence  text
);

CREATE INDEX act_address ON "retrysafe".act (namespace, account, key);

CREATE FUNCTION "retrysafe".only_added_to() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the log of acts is only added to';
END
$$;

CREATE TRIGGER act_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON "retrysafe".act
    FOR EACH STATEMENT EXECUTE FUNCTION "retrysafe".only_added_to();
