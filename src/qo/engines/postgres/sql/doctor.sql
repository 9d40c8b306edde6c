-- The checks of `qo doctor`. Each returns one value.

-- name: server_time
SELECT extract(epoch FROM clock_timestamp())::float8

-- name: doctor_fsync
SELECT current_setting('fsync')

-- name: doctor_full_pages
SELECT current_setting('full_page_writes')

-- name: doctor_commit
SELECT current_setting('synchronous_commit')

-- name: doctor_standby
SELECT pg_is_in_recovery()

-- name: doctor_may_create
-- Whether this user may create the schema, or tables in it.
SELECT CASE WHEN to_regnamespace(%(schema)s) IS NULL THEN has_database_privilege(current_database(), 'CREATE')
            ELSE has_schema_privilege(%(schema)s, 'CREATE') END

-- name: doctor_privileges
-- The tables that this user may not read and write. Roles may lack rights to those of admin and audit notes.
SELECT string_agg(c.oid::regclass::text, ', ')
FROM pg_class AS c
WHERE c.relnamespace = to_regnamespace(%(schema)s) AND c.relkind = 'r'
  AND c.relname NOT IN ('schema_version', 'admin_notes', 'audit_notes')
  AND NOT (has_schema_privilege(c.relnamespace, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
           AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE')
           AND has_table_privilege(c.oid, 'DELETE'))

-- name: doctor_vacuum
SELECT current_setting('autovacuum')::boolean AND NOT EXISTS (
    SELECT FROM pg_class WHERE relnamespace = to_regnamespace(%(schema)s) AND 'autovacuum_enabled=false' = ANY (reloptions))

-- name: doctor_wrong_counts
-- The number of lanes and statuses whose count differs from the tasks.
SELECT count(*)
FROM (SELECT lane, status, count(*) AS count FROM {schema}.tasks WHERE status <> 'damaged' GROUP BY lane, status) AS actual
FULL JOIN (SELECT lane, status, sum(count) AS count FROM {schema}.tally GROUP BY lane, status HAVING sum(count) <> 0) AS recorded
    USING (lane, status)
WHERE actual.count IS DISTINCT FROM recorded.count

-- name: doctor_unindexed
-- The number of pending tasks in neither `ready` nor `coming`, and of running tasks under no lease.
SELECT (SELECT count(*) FROM {schema}.tasks AS t WHERE t.status = 'pending'
          AND NOT EXISTS (SELECT FROM {schema}.ready AS r
                          WHERE (r.lane, r.rank, r.created_at, r.id, r.version) = (t.lane, t.rank, t.created_at, t.id, t.version))
          AND NOT EXISTS (SELECT FROM {schema}.coming AS c WHERE (c.available_at, c.id, c.version) = (t.available_at, t.id, t.version)))
     + (SELECT count(*) FROM {schema}.tasks AS t WHERE t.status = 'running'
          AND NOT EXISTS (SELECT FROM {schema}.leases AS l WHERE l.lease_id = t.lease_id AND t.id = ANY (l.ids)))
