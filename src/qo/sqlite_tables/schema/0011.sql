-- Only in files: no tables in a bucket have this version. A task that plain code adds alone is a row of `unindexed` until the next writer
-- moves it into `tasks`, with its indexes, and counts it. `n` follows from the id (unindexed.py), so no id is added twice.
CREATE TABLE unindexed (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    lane INTEGER NOT NULL,
    available_at REAL NOT NULL,
    rank REAL NOT NULL,
    created_at REAL NOT NULL,
    priority INTEGER NOT NULL,
    timeout REAL NOT NULL,
    max_retries INTEGER NOT NULL,
    retry TEXT,
    trace_id TEXT,
    run_at REAL,
    batch TEXT,
    payload BLOB NOT NULL
);

-- With step 10 such a task was in `tasks`, with `ready` 2.
INSERT INTO events (n, version, at, status, attempt, failures, worker_id, error, available_at)
SELECT n, version, updated_at, status, attempt, failures, worker_id, error, available_at FROM tasks
WHERE ready = 2 AND available_at <> coalesce(run_at, created_at);
INSERT INTO tally (lane, status, count)
SELECT lane, status, count(*) FROM tasks WHERE ready = 2 GROUP BY lane, status
ON CONFLICT (lane, status) DO UPDATE SET count = count + excluded.count;
UPDATE lanes SET changed = (SELECT max(changed) FROM lanes) + 1 WHERE n IN (SELECT lane FROM tasks WHERE ready = 2);
UPDATE tasks SET ready = (available_at <= created_at) WHERE ready = 2;
DROP INDEX tasks_listed;
CREATE INDEX tasks_listed ON tasks (created_at);
