-- What there is.

-- name: get
SELECT {columns} FROM {schema}.tasks AS t WHERE t.id = ANY (%(id)s::uuid[])

-- name: history
SELECT version, at, status, attempt, failures, worker_id, error, available_at FROM {schema}.events WHERE id = %(id)s::uuid
UNION ALL
SELECT e.version, e.at, e.status, e.attempt, e.failures, e.worker_id, e.error, e.available_at
FROM {schema}.tasks AS t, {schema}.own_events(t) AS e WHERE t.id = %(id)s::uuid
ORDER BY version

-- name: counts
-- Without the names of the lanes: the caller knows them, and a join of two tables that were never analyzed may take a minute.
SELECT lane, status, sum(count)::bigint, count(*) FROM {schema}.tally GROUP BY lane, status

-- name: some_pending
SELECT (SELECT count(*) FROM (SELECT FROM {schema}.ready LIMIT %(limit)s) AS head)
     + (SELECT count(*) FROM (SELECT FROM {schema}.coming LIMIT %(limit)s) AS head)

-- name: fold
-- Connections come and go; what they counted is gathered in slot 0. Rows in use right now are left for the next time.
WITH gone AS (
    DELETE FROM {schema}.tally WHERE (slot, lane, status) IN (
        SELECT slot, lane, status FROM {schema}.tally WHERE slot <> 0 ORDER BY slot, lane, status FOR UPDATE SKIP LOCKED)
    RETURNING lane, status, count
)
INSERT INTO {schema}.tally AS t (slot, lane, status, count)
SELECT 0, lane, status, sum(count) FROM gone GROUP BY lane, status
ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count
