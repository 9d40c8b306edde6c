-- Where a first task under an idempotency key is followed by others, the last of them. It has an id of its own.
CREATE TABLE {schema}.followers (
    first uuid PRIMARY KEY,
    last uuid NOT NULL UNIQUE,
    since float8 NOT NULL  -- when the last was created
);
