-- Only in files: no tables in a bucket have this version. A task that plain code adds alone is in no index but that of its id, and is not
-- counted, until the next writer or the 128th such task adds all of them to the indexes and counts. Such tasks have `ready` 2 and the
-- highest numbers of all tasks.
DROP INDEX tasks_listed;
CREATE INDEX tasks_listed ON tasks (created_at) WHERE ready IS NOT 2;
