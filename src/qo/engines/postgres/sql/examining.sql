-- What `qo doctor` asks.

-- name: ask_clock
SELECT extract(epoch FROM clock_timestamp())::float8

-- name: ask_fsync
SELECT current_setting('fsync')

-- name: ask_full_pages
SELECT current_setting('full_page_writes')

-- name: ask_commit
SELECT current_setting('synchronous_commit')

-- name: ask_standby
SELECT pg_is_in_recovery()

-- name: ask_creating
SELECT CASE WHEN to_regnamespace(%(schema)s) IS NULL THEN has_database_privilege(current_database(), 'CREATE')
            ELSE has_schema_privilege(%(schema)s, 'CREATE') END

-- name: ask_privileges
SELECT string_agg(c.oid::regclass::text, ', ')
FROM pg_class AS c
WHERE c.relnamespace = to_regnamespace(%(schema)s) AND c.relkind = 'r'
  AND c.relname NOT IN ('schema_version', 'admin_notes', 'audit_notes')
  AND NOT (has_schema_privilege(c.relnamespace, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
           AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE')
           AND has_table_privilege(c.oid, 'DELETE'))

-- name: ask_vacuum
SELECT current_setting('autovacuum')::boolean AND NOT EXISTS (
    SELECT FROM pg_class WHERE relnamespace = to_regnamespace(%(schema)s) AND 'autovacuum_enabled=false' = ANY (reloptions))

-- name: ask_tally
SELECT count(*)
FROM (SELECT lane, status, count(*) AS count FROM {schema}.tasks WHERE status <> 'damaged' GROUP BY lane, status) AS real
FULL JOIN (SELECT lane, status, sum(count) AS count FROM {schema}.tally GROUP BY lane, status HAVING sum(count) <> 0) AS told
    USING (lane, status)
WHERE real.count IS DISTINCT FROM told.count

-- name: ask_turns
SELECT (SELECT count(*) FROM {schema}.tasks AS t WHERE t.status = 'pending'
          AND NOT EXISTS (SELECT FROM {schema}.ready AS r WHERE (r.lane, r.rank, r.id, r.version) = (t.lane, t.rank, t.id, t.version))
          AND NOT EXISTS (SELECT FROM {schema}.coming AS c WHERE (c.available_at, c.id, c.version) = (t.available_at, t.id, t.version)))
     + (SELECT count(*) FROM {schema}.tasks AS t WHERE t.status = 'running'
          AND NOT EXISTS (SELECT FROM {schema}.leases AS l WHERE l.lease_id = t.lease_id AND t.id = ANY (l.ids)))
