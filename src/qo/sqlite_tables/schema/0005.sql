-- The last task under an idempotency key, by the id of the first one, if there are several. Each has its own id.
CREATE TABLE followers (
    first TEXT PRIMARY KEY,
    last TEXT NOT NULL UNIQUE
) WITHOUT ROWID;
