-- A lane has one priority, so that pending tasks are counted by priority without reading them.
-- Lanes of priority 6, the default, keep their numbers, so processes of the previous version keep adding tasks to the right lanes.

CREATE TABLE lanes_by_priority (
    n INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    type TEXT NOT NULL,
    needs TEXT NOT NULL,  -- a JSON list of capabilities
    priority INTEGER NOT NULL DEFAULT 6,
    UNIQUE (queue, type, needs, priority)
);
INSERT INTO lanes_by_priority (n, queue, type, needs) SELECT n, queue, type, needs FROM lanes;
INSERT INTO lanes_by_priority (queue, type, needs, priority)
SELECT DISTINCT lanes.queue, lanes.type, lanes.needs, tasks.priority FROM tasks JOIN lanes ON lanes.n = tasks.lane
WHERE tasks.priority <> 6;
UPDATE tasks
SET lane = (SELECT new.n FROM lanes AS old JOIN lanes_by_priority AS new USING (queue, type, needs)
            WHERE old.n = tasks.lane AND new.priority = tasks.priority)
WHERE priority <> 6;
DROP TABLE lanes;
ALTER TABLE lanes_by_priority RENAME TO lanes;

DELETE FROM tally;
INSERT INTO tally SELECT lane, status, count(*) FROM tasks GROUP BY lane, status;
