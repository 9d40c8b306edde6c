-- The table that only replicas of a log have.

-- The next number of each producer's stream of submissions. Those before it were added.
CREATE TABLE submissions (
    producer TEXT PRIMARY KEY,
    next INTEGER NOT NULL,
    at REAL NOT NULL  -- when the last one was added
) WITHOUT ROWID;
