-- The last task under an idempotency key, by the first one, if they differ.
CREATE TABLE {schema}.followers (
    first uuid PRIMARY KEY,
    last uuid NOT NULL UNIQUE,
    since float8 NOT NULL  -- when the last one was created
);
