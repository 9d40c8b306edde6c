-- Tasks that are not in these tables but in objects of a log, its cold segments (docs/log-format.md). In any other database these tables
-- are empty. `tally` counts the tasks of segments too.
CREATE TABLE segments (
    n INTEGER PRIMARY KEY,
    object TEXT NOT NULL,  -- the end of the object's name
    tasks INTEGER NOT NULL,
    last INTEGER NOT NULL,  -- the highest number of a task; it is not given to another one
    oldest REAL NOT NULL,  -- the lowest and the highest `created_at`
    newest REAL NOT NULL,
    finished_at REAL,  -- of finished tasks: the lowest `completed_at`
    lane INTEGER,  -- of ready tasks: all are in this lane
    rank REAL  -- of ready tasks: the lowest one
);

-- Which segment may contain an id, by the first eight bytes of its BLAKE2b digest.
CREATE TABLE cold_ids (
    hash INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    is_set INTEGER NOT NULL DEFAULT 1,  -- constant: SQLite merges a deletion and an insertion of one row to a damaged patchset if a
                                        -- table has key columns only
    PRIMARY KEY (hash, segment)
) WITHOUT ROWID;

CREATE TABLE cold_counts (
    segment INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    status TEXT NOT NULL,
    batch TEXT NOT NULL,  -- empty: none
    count INTEGER NOT NULL,
    PRIMARY KEY (segment, lane, status, batch)
) WITHOUT ROWID;
CREATE INDEX cold_counts_batched ON cold_counts (batch) WHERE batch <> '';
