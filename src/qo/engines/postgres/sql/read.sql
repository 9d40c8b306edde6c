-- Reads of tasks. reader.py builds the statement of `find`.

-- name: get
SELECT {columns} FROM {schema}.tasks AS t WHERE t.id = ANY (%(id)s::uuid[])

-- name: history
-- Events in the table, and those that the columns of the task contain.
SELECT e.version, e.at, e.status, e.attempt, e.failures, e.worker_id, e.error, e.available_at,
       coalesce(e.log, CASE WHEN e.version = t.log_version THEN t.log END)
FROM {schema}.events AS e LEFT JOIN {schema}.tasks AS t USING (id) WHERE e.id = %(id)s::uuid
UNION ALL
SELECT e.version, e.at, e.status, e.attempt, e.failures, e.worker_id, e.error, e.available_at,
       CASE WHEN e.version = t.log_version THEN t.log END
FROM {schema}.tasks AS t, {schema}.own_events(t) AS e WHERE t.id = %(id)s::uuid
ORDER BY version

-- name: counts_of_batch
SELECT lane, status, count(*) FROM {schema}.tasks WHERE batch = %(batch)s GROUP BY lane, status

-- name: some_pending
-- The number of pending tasks, up to a limit.
SELECT (SELECT count(*) FROM (SELECT FROM {schema}.ready LIMIT %(limit)s) AS head)
     + (SELECT count(*) FROM (SELECT FROM {schema}.coming LIMIT %(limit)s) AS head)

-- name: some_coming
-- The number of tasks that are due later, up to a limit.
SELECT count(*) FROM (SELECT FROM {schema}.coming LIMIT %(limit)s) AS head
