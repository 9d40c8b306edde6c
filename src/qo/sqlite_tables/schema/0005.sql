-- Where a first task under an idempotency key is followed by others, the last of them. It has an id of its own.
CREATE TABLE followers (
    first TEXT PRIMARY KEY,
    last TEXT NOT NULL UNIQUE
) WITHOUT ROWID;
