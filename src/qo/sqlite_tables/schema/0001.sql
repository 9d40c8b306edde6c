-- The first schema. Times are seconds since the epoch. Columns have the names of the fields of a task.

CREATE TABLE lanes (
    n INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    type TEXT NOT NULL,
    needs TEXT NOT NULL,  -- a JSON list of capabilities
    UNIQUE (queue, type, needs)
);

-- `payload` and `result` come last, so that the other columns are read without reading their pages.
CREATE TABLE tasks (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    lane INTEGER NOT NULL,  -- queue, type and needs
    status TEXT NOT NULL,
    ready INTEGER,  -- of a pending task: 1 if it is due, 0 before that; otherwise NULL
    available_at REAL NOT NULL,
    rank REAL NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    version INTEGER NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    started_at REAL,
    completed_at REAL,
    lease_expires_at REAL,
    lease_id TEXT,
    worker_id TEXT,
    priority INTEGER NOT NULL,
    timeout REAL NOT NULL,
    max_retries INTEGER NOT NULL,
    retry TEXT,  -- a JSON object; NULL is the default policy
    idempotency_key TEXT,
    trace_id TEXT,
    error TEXT,
    payload BLOB NOT NULL,
    result BLOB
);

-- Partial indexes contain only the tasks that a query may return, so a claim never reads a task that it cannot take.
CREATE INDEX tasks_ready ON tasks (lane, rank) WHERE ready = 1;
CREATE INDEX tasks_coming ON tasks (available_at) WHERE ready = 0;
CREATE INDEX tasks_leased ON tasks (lease_expires_at) WHERE status = 'running';
CREATE INDEX tasks_finished ON tasks (status, created_at) WHERE completed_at IS NOT NULL;
CREATE INDEX tasks_listed ON tasks (created_at);

CREATE TABLE events (
    n INTEGER NOT NULL,
    version INTEGER NOT NULL,
    at REAL NOT NULL,
    status TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    worker_id TEXT,
    error TEXT,
    available_at REAL NOT NULL,
    PRIMARY KEY (n, version)
) WITHOUT ROWID;

CREATE TABLE tally (
    lane INTEGER NOT NULL,
    status TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (lane, status)
) WITHOUT ROWID;

CREATE TABLE notes (
    name TEXT PRIMARY KEY,
    data BLOB NOT NULL,
    version TEXT NOT NULL
) WITHOUT ROWID;
