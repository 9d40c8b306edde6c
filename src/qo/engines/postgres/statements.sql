-- Every statement of the engine, by name. A batch travels as arrays, one a column, and is one statement: a task, its
-- events and the counts change together or not at all.
-- The clock: :now is null in production, where the server's own clock rules; tests pass theirs.
-- Locks are taken on tasks in the order of their ids, so that batches wait for each other and never in a ring.

-- name: lanes
SELECT n, queue, type, needs, priority FROM {schema}.lanes

-- name: make_lanes
INSERT INTO {schema}.lanes (queue, type, needs, priority)
SELECT queue, type, needs::text[], priority
FROM unnest(%(queue)s::text[], %(type)s::text[], %(needs)s::text[], %(priority)s::integer[]) AS new (queue, type, needs, priority)
ON CONFLICT DO NOTHING

-- name: given
-- The head of both additions. What many tasks have in common travels once: `kind` is a task's place in the lists of
-- lanes, priorities, ...
WITH clock AS MATERIALIZED (SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8) AS now),
given AS MATERIALIZED (
    SELECT g.id, g.payload, g.idempotency_key, g.trace_id, stamp.at AS created_at, due.at AS available_at,
           due.at + k.priority * k.ageing AS rank,
           k.lane, k.priority, k.timeout, k.max_retries, k.retry, k.room
    FROM clock,
         unnest(%(id)s::uuid[], %(kind)s::integer[], %(payload)s::bytea[], %(delay)s::float8[], %(run_at)s::float8[],
                %(idempotency_key)s::text[], %(trace_id)s::text[]) WITH ORDINALITY
             AS g (id, kind, payload, delay, run_at, idempotency_key, trace_id, nth),
         LATERAL (SELECT (%(lane)s::integer[])[g.kind] AS lane, (%(priority)s::float8[])[g.kind] AS priority,
                         (%(ageing)s::float8[])[g.kind] AS ageing, (%(timeout)s::float8[])[g.kind] AS timeout,
                         (%(max_retries)s::integer[])[g.kind] AS max_retries, (%(retry)s::text[])[g.kind] AS retry,
                         (%(room)s::float8[])[g.kind] AS room) AS k,
         LATERAL (SELECT clock.now - 0.000003::float8 * (%(size)s::integer - g.nth) AS at) AS stamp,
         LATERAL (SELECT coalesce(g.run_at, stamp.at + g.delay) AS at) AS due
    ORDER BY g.id
),

-- name: add_new
-- As `add`, for tasks whose ids are surely new: without looking out for conflicts it costs a quarter less.
-- If one is there after all, nothing is written, and `add` sorts it out.
{given}
landed AS (
    INSERT INTO {schema}.tasks (id, submit_id, available_at, rank, created_at, updated_at, pended_at, timeout, lane, version,
                                max_retries, priority, status, retry, idempotency_key, trace_id, payload)
    SELECT id, %(submit_id)s, available_at, rank, created_at, created_at, created_at, timeout, lane, 1,
           max_retries, priority, 'pending', retry, idempotency_key, trace_id, payload
    FROM given
),
made_ready AS (
    INSERT INTO {schema}.ready (lane, rank, id, version)
    SELECT lane, rank, id, 1 FROM given, clock WHERE available_at <= clock.now ORDER BY lane, rank
),
scheduled AS (
    INSERT INTO {schema}.coming (available_at, id, version)
    SELECT available_at, id, 1 FROM given, clock WHERE available_at > clock.now
),
counted AS (
    INSERT INTO {schema}.tally AS t (slot, lane, status, count)
    SELECT pg_backend_pid(), lane, 'pending', count(*) FROM given GROUP BY lane
    ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count
)
SELECT pg_notify(%(channel)s, '')::text

-- name: add
{given}
landed AS (
    INSERT INTO {schema}.tasks (id, submit_id, available_at, rank, created_at, updated_at, pended_at, timeout, lane, version,
                                max_retries, priority, status, retry, idempotency_key, trace_id, payload)
    SELECT id, %(submit_id)s, available_at, rank, created_at, created_at, created_at, timeout, lane, 1,
           max_retries, priority, 'pending', retry, idempotency_key, trace_id, payload
    FROM given
    ON CONFLICT (id) DO NOTHING
    RETURNING id, lane, rank, available_at, version
),
leaving AS MATERIALIZED (  -- finished, and their key's window is over: they make room
    SELECT t AS task, t.id, t.lane, t.status
    FROM given JOIN {schema}.tasks AS t ON t.id = given.id
    WHERE given.idempotency_key IS NOT NULL AND t.completed_at IS NOT NULL AND given.created_at - t.created_at >= given.room
    ORDER BY t.id FOR UPDATE OF t
),
kept AS (INSERT INTO {schema}.events SELECT trail.* FROM leaving, {schema}.trail(leaving.task) AS trail),
replaced AS (
    UPDATE {schema}.tasks AS t
    SET submit_id = %(submit_id)s, available_at = g.available_at, rank = g.rank, created_at = g.created_at,
        updated_at = g.created_at, pended_at = g.created_at, timeout = g.timeout, lane = g.lane, version = t.version + 1,
        max_retries = g.max_retries, priority = g.priority, status = 'pending', shelf = NULL, retry = g.retry,
        idempotency_key = g.idempotency_key, trace_id = g.trace_id, payload = g.payload, attempt = 0, failures = 0,
        claimed = NULL, started_at = NULL, completed_at = NULL, lease_expires_at = NULL, lease_id = NULL,
        worker_id = NULL, error = NULL, result = NULL
    FROM given AS g JOIN leaving USING (id)
    WHERE t.id = g.id
    RETURNING t.id, t.lane, t.rank, t.available_at, t.version
),
news AS MATERIALIZED (SELECT * FROM landed UNION ALL SELECT * FROM replaced),
made_ready AS (
    INSERT INTO {schema}.ready (lane, rank, id, version)
    SELECT lane, rank, id, version FROM news, clock WHERE available_at <= clock.now ORDER BY lane, rank
),
scheduled AS (
    INSERT INTO {schema}.coming (available_at, id, version)
    SELECT available_at, id, version FROM news, clock WHERE available_at > clock.now
),
counted AS (
    INSERT INTO {schema}.tally AS t (slot, lane, status, count)
    SELECT pg_backend_pid(), lane, status, sum(number)
    FROM (SELECT lane, 'pending' AS status, count(*) AS number FROM news GROUP BY lane
          UNION ALL SELECT lane, status, -count(*) FROM leaving GROUP BY lane, status) AS moved
    GROUP BY lane, status
    ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count
),
told AS MATERIALIZED (SELECT pg_notify(%(channel)s, '') FROM (SELECT FROM news LIMIT 1) AS one)
SELECT id::text FROM news WHERE (SELECT count(*) FROM told) >= 0

-- name: added
-- After a lost answer: which of these tasks does the store have from us?
SELECT id::text FROM {schema}.tasks WHERE id = ANY (%(id)s::uuid[]) AND submit_id = %(submit_id)s

-- name: stage
-- Make ready what has become due. In steps: one statement must not gather a million tasks.
WITH due AS MATERIALIZED (
    SELECT coming.ctid AS place, t.id, t.lane, t.rank, t.version
    FROM {schema}.coming JOIN {schema}.tasks AS t USING (id, version)
    WHERE coming.available_at <= %(now)s
    ORDER BY coming.available_at, coming.id LIMIT %(step)s FOR UPDATE OF t SKIP LOCKED
),
void AS MATERIALIZED (
    SELECT coming.ctid AS place FROM {schema}.coming LEFT JOIN {schema}.tasks AS t USING (id, version)
    WHERE coming.available_at <= %(now)s AND t.id IS NULL LIMIT %(step)s
),
gone AS (DELETE FROM {schema}.coming USING (SELECT place FROM due UNION ALL SELECT place FROM void) AS g WHERE ctid = g.place),
moved AS (INSERT INTO {schema}.ready (lane, rank, id, version) SELECT lane, rank, id, version FROM due)
SELECT count(*) FROM due

-- name: claim
-- First how many each lane gives (looking only), then exactly so many are locked: what others have locked is passed over.
-- Every answer carries when the next task that is not ready becomes due; if that has come already, nothing is claimed
-- and `stage` goes first. The lock is for whoever asks for this claim again while it is still at work.
WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8) AS now
    FROM (SELECT pg_advisory_xact_lock(hashtextextended(%(lease_id)s, 0)) OFFSET 0) AS alone
),
coming AS MATERIALIZED (SELECT min(available_at) AS at FROM {schema}.coming),
open AS MATERIALIZED (
    SELECT lanes.n, lanes.type, least(coalesce(part.most, %(limit)s::integer), %(limit)s::integer) AS most
    FROM {schema}.lanes LEFT JOIN unnest(%(part)s::text[], %(most)s::integer[]) AS part (type, most) USING (type), clock, coming
    WHERE (%(queues)s::text[] = '{}' OR queue = ANY (%(queues)s::text[]))
      AND (%(types)s::text[] = '{}' OR lanes.type = ANY (%(types)s::text[]))
      AND needs <@ %(capabilities)s::text[]
      AND (%(staged)s OR coming.at IS NULL OR coming.at > clock.now)
),
share AS MATERIALIZED (
    SELECT n AS lane, most AS size FROM open WHERE (SELECT count(*) FROM open) = 1
    UNION ALL
    SELECT lane, count(*)
    FROM (SELECT lane FROM (
              SELECT open.n AS lane, open.most, head.rank, head.id,
                     row_number() OVER (PARTITION BY open.type ORDER BY head.rank, head.id) AS nth
              FROM open, LATERAL (SELECT rank, id FROM {schema}.ready
                                  WHERE lane = open.n ORDER BY rank, id LIMIT open.most) AS head) AS heads
          WHERE nth <= most ORDER BY rank, id LIMIT %(limit)s::integer) AS first
    WHERE (SELECT count(*) FROM open) > 1
    GROUP BY lane
),
first AS MATERIALIZED (
    SELECT head.*
    FROM share, LATERAL (SELECT t.ctid AS task, ready.ctid AS place
                         FROM {schema}.ready JOIN {schema}.tasks AS t USING (id, version) WHERE ready.lane = share.lane
                         ORDER BY ready.rank, ready.id LIMIT share.size FOR UPDATE OF t SKIP LOCKED) AS head
),
void AS MATERIALIZED (
    SELECT head.place
    FROM open, LATERAL (SELECT ctid AS place, id, version FROM {schema}.ready WHERE lane = open.n ORDER BY rank, id LIMIT 3) AS head
         LEFT JOIN {schema}.tasks AS t USING (id, version)
    WHERE t.id IS NULL
),
gone AS (DELETE FROM {schema}.ready USING (SELECT place FROM first UNION ALL SELECT place FROM void) AS g WHERE ctid = g.place),
claimed AS (
    UPDATE {schema}.tasks AS t
    SET status = 'running', attempt = attempt + 1, lease_id = %(lease_id)s, worker_id = %(worker_id)s,
        lease_expires_at = clock.now + %(lease)s, started_at = clock.now, updated_at = clock.now, version = version + 1,
        claimed = version + 1
    FROM first, clock
    WHERE t.ctid = first.task  -- locked, and of the version that is ready: this is where it lies
    RETURNING t.*
),
leased AS (
    INSERT INTO {schema}.leases AS l (lease_id, expires_at, remaining, ids)
    SELECT %(lease_id)s, clock.now + %(lease)s, count(*), array_agg(id) FROM claimed, clock GROUP BY clock.now
    ON CONFLICT (lease_id) DO UPDATE SET remaining = l.remaining + excluded.remaining, ids = l.ids || excluded.ids
),
spent AS (
    DELETE FROM {schema}.leases WHERE lease_id IN (
        SELECT lease_id FROM {schema}.leases WHERE remaining <= 0 LIMIT 20 FOR UPDATE SKIP LOCKED)
      AND lease_id <> %(lease_id)s
),
counted AS (
    INSERT INTO {schema}.tally AS t (slot, lane, status, count)
    SELECT pg_backend_pid(), lane, side.status, side.sign * number
    FROM (SELECT lane, count(*) AS number FROM claimed GROUP BY lane) AS moved,
         (VALUES ('pending', -1), ('running', 1)) AS side (status, sign)
    ORDER BY lane, status
    ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count
)
SELECT clock.now, coming.at, {columns} FROM clock CROSS JOIN coming LEFT JOIN claimed AS t ON true

-- name: await_claim
SELECT FROM (SELECT pg_advisory_xact_lock(hashtextextended(%(lease_id)s, 0)) OFFSET 0) AS alone

-- name: held_under
SELECT {columns}
FROM {schema}.leases AS l, unnest(l.ids) AS held (id) JOIN {schema}.tasks AS t USING (id)
WHERE l.lease_id = %(lease_id)s AND t.status = 'running' AND t.lease_id = %(lease_id)s

-- name: claimable
SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8),
       (SELECT min(available_at) FROM {schema}.coming),
       EXISTS (
           SELECT FROM {schema}.lanes, LATERAL (SELECT FROM {schema}.ready WHERE lane = lanes.n LIMIT 1) AS head
           WHERE (%(queues)s::text[] = '{}' OR queue = ANY (%(queues)s::text[]))
             AND (%(types)s::text[] = '{}' OR type = ANY (%(types)s::text[]))
             AND needs <@ %(capabilities)s::text[])

-- name: complete
-- The ordinary end: held, and never failed before, so that its columns go on telling all its events.
WITH clock AS MATERIALIZED (SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8) AS now),
change AS MATERIALIZED (
    SELECT * FROM unnest(%(id)s::uuid[], %(lease_id)s::text[], %(result)s::bytea[]) AS c (id, lease_id, result) ORDER BY id
),
done AS (
    UPDATE {schema}.tasks AS t
    SET status = 'completed', result = c.result, completed_at = clock.now, lease_expires_at = NULL,
        updated_at = clock.now, version = version + 1
    FROM change AS c, clock
    WHERE t.id = c.id AND t.status = 'running' AND t.lease_id = c.lease_id AND t.error IS NULL
    RETURNING t.id, t.lane, t.lease_id
),
settled AS (
    UPDATE {schema}.leases AS l SET remaining = l.remaining - s.number
    FROM (SELECT lease_id, count(*) AS number FROM done GROUP BY lease_id ORDER BY lease_id) AS s
    WHERE l.lease_id = s.lease_id
),
counted AS (
    INSERT INTO {schema}.tally AS t (slot, lane, status, count)
    SELECT pg_backend_pid(), lane, side.status, side.sign * number
    FROM (SELECT lane, count(*) AS number FROM done GROUP BY lane) AS moved,
         (VALUES ('completed', 1), ('running', -1)) AS side (status, sign)
    ORDER BY lane, status
    ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count
)
SELECT id::text FROM done

-- name: change
-- Any change, under a lock: what the old row tells of the task's events is kept before it is overwritten.
WITH clock AS MATERIALIZED (SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8) AS now),
change AS MATERIALIZED (
    SELECT * FROM unnest(%(id)s::uuid[], %(guard)s::text[], %(to)s::text[], %(lease_id)s::text[], %(grace)s::float8[],
                         %(delay)s::float8[], %(lease)s::float8[], %(failures)s::integer[],
                         %(result)s::bytea[], %(error)s::text[])
        AS c (id, guard, "to", lease_id, grace, delay, lease, failures, result, error)
),
locked AS MATERIALIZED (
    SELECT t AS task, t.id, t.lane, t.status, t.lease_id, t.lease_expires_at, t.rank, t.available_at, t.version
    FROM change JOIN {schema}.tasks AS t USING (id) ORDER BY t.id FOR UPDATE OF t
),
allowed AS MATERIALIZED (
    SELECT c.*, l.task, l.lane, l.status, l.lease_id AS held_by, l.rank, l.available_at, l.version
    FROM change AS c JOIN locked AS l USING (id), clock
    WHERE CASE c.guard
        WHEN 'held' THEN l.status = 'running' AND l.lease_id = c.lease_id
        WHEN 'expired' THEN l.status = 'running' AND l.lease_id = c.lease_id AND l.lease_expires_at <= clock.now - c.grace
        WHEN 'unfinished' THEN l.status IN ('pending', 'running')
        WHEN 'ended' THEN l.status IN ('completed', 'failed', 'cancelled')
        WHEN 'replayable' THEN l.status IN ('failed', 'cancelled', 'archived')
    END
),
kept AS (
    INSERT INTO {schema}.events
    SELECT trail.* FROM allowed AS a, {schema}.trail(a.task) AS trail WHERE a."to" <> 'running'
),
changed AS (
    UPDATE {schema}.tasks AS t
    SET status = a."to",
        available_at = new.available_at,
        rank = coalesce(t.rank - t.available_at + (clock.now + a.delay), t.rank),
        shelf = CASE WHEN a."to" IN ('failed', 'cancelled', 'archived') THEN a."to" END,
        failures = coalesce(a.failures, t.failures),
        result = CASE WHEN a."to" <> 'pending' THEN coalesce(a.result, t.result) END,
        error = CASE WHEN a."to" <> 'completed' THEN coalesce(a.error, t.error) END,
        worker_id = CASE WHEN a."to" <> 'pending' THEN t.worker_id END,
        lease_expires_at = clock.now + a.lease,
        started_at = CASE WHEN a."to" <> 'pending' THEN t.started_at END,
        completed_at = CASE WHEN a."to" NOT IN ('pending', 'running') THEN coalesce(t.completed_at, clock.now) END,
        updated_at = clock.now,
        version = t.version + 1,
        pended_at = CASE a."to" WHEN 'pending' THEN clock.now WHEN 'running' THEN t.pended_at END,
        claimed = CASE WHEN a."to" = 'running' THEN t.claimed END
    FROM allowed AS a, clock,
         LATERAL (SELECT coalesce(clock.now + a.delay, a.available_at) AS available_at) AS new
    WHERE t.id = a.id
    RETURNING t.id, t.status, t.lane, t.rank, t.available_at, t.version
),
unready AS (
    DELETE FROM {schema}.ready USING allowed AS a
    WHERE a.status = 'pending' AND (ready.lane, ready.rank, ready.id, ready.version) = (a.lane, a.rank, a.id, a.version)
),
unscheduled AS (
    DELETE FROM {schema}.coming USING allowed AS a
    WHERE a.status = 'pending' AND (coming.available_at, coming.id, coming.version) = (a.available_at, a.id, a.version)
),
made_ready AS (
    INSERT INTO {schema}.ready (lane, rank, id, version)
    SELECT lane, rank, id, version FROM changed, clock WHERE status = 'pending' AND available_at <= clock.now
),
scheduled AS (
    INSERT INTO {schema}.coming (available_at, id, version)
    SELECT available_at, id, version FROM changed, clock WHERE status = 'pending' AND available_at > clock.now
),
settled AS (
    UPDATE {schema}.leases AS l SET remaining = l.remaining - s.number, expires_at = least(l.expires_at, s.soonest)
    FROM (SELECT held_by, count(*) FILTER (WHERE "to" <> 'running') AS number,
                 min(clock.now + lease) FILTER (WHERE "to" = 'running') AS soonest
          FROM allowed, clock WHERE status = 'running' GROUP BY held_by ORDER BY held_by) AS s
    WHERE l.lease_id = s.held_by AND (s.number > 0 OR s.soonest < l.expires_at)
),
counted AS (
    INSERT INTO {schema}.tally AS t (slot, lane, status, count)
    SELECT pg_backend_pid(), lane, status, sum(number)
    FROM (SELECT lane, status, -count(*) AS number FROM allowed WHERE "to" <> status GROUP BY lane, status
          UNION ALL SELECT lane, "to", count(*) FROM allowed WHERE "to" <> status GROUP BY lane, "to") AS moved
    GROUP BY lane, status
    ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count
),
told AS MATERIALIZED (
    SELECT pg_notify(%(channel)s, '') FROM (SELECT FROM allowed WHERE "to" = 'pending' LIMIT 1) AS one
)
SELECT id::text FROM changed WHERE (SELECT count(*) FROM told) >= 0
UNION ALL  -- written before: its answer may have been lost, so it is given again
SELECT l.id::text FROM change AS c JOIN locked AS l USING (id)
WHERE c.guard = 'held' AND l.lease_id = c.lease_id AND l.status = c."to" AND l.status <> 'running'

-- name: delete
WITH gone AS (
    DELETE FROM {schema}.tasks WHERE id = ANY (%(id)s::uuid[]) AND completed_at IS NOT NULL RETURNING id, lane, status
),
forgotten AS (DELETE FROM {schema}.events USING gone WHERE events.id = gone.id),
counted AS (
    INSERT INTO {schema}.tally AS t (slot, lane, status, count)
    SELECT pg_backend_pid(), lane, status, -count(*) FROM gone GROUP BY lane, status
    ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count
)
SELECT id::text FROM gone

-- name: get
SELECT {columns} FROM {schema}.tasks AS t WHERE t.id = ANY (%(id)s::uuid[])

-- name: history
SELECT version, at, status, attempt, failures, worker_id, error, available_at FROM {schema}.events WHERE id = %(id)s::uuid
UNION ALL
SELECT trail.version, trail.at, trail.status, trail.attempt, trail.failures, trail.worker_id, trail.error, trail.available_at
FROM {schema}.tasks AS t, {schema}.trail(t) AS trail WHERE t.id = %(id)s::uuid
ORDER BY version

-- name: counts
SELECT queue, type, status, priority, sum(count)::bigint, count(*)
FROM {schema}.tally JOIN {schema}.lanes ON lanes.n = tally.lane GROUP BY queue, type, status, priority

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

-- name: read_note
SELECT name, data, version FROM {schema}.notes WHERE name = %(name)s

-- name: create_note
INSERT INTO {schema}.notes AS n (name, data, version) VALUES (%(name)s, %(data)s, %(version)s)
ON CONFLICT (name) DO UPDATE SET data = excluded.data WHERE n.version = excluded.version
RETURNING version

-- name: replace_note
UPDATE {schema}.notes SET data = %(data)s, version = %(version)s WHERE name = %(name)s AND version IN (%(expected)s, %(version)s)
RETURNING version

-- name: put_note
INSERT INTO {schema}.notes AS n (name, data, version) VALUES (%(name)s, %(data)s, %(version)s)
ON CONFLICT (name) DO UPDATE SET data = excluded.data, version = excluded.version
RETURNING version

-- name: notes
SELECT name, data, version FROM {schema}.notes WHERE starts_with(name, %(prefix)s) ORDER BY name

-- name: drop_note
DELETE FROM {schema}.notes WHERE name = %(name)s

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
WHERE c.relnamespace = to_regnamespace(%(schema)s) AND c.relkind = 'r' AND c.relname <> 'schema_version'
  AND NOT (has_schema_privilege(c.relnamespace, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
           AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE')
           AND has_table_privilege(c.oid, 'DELETE'))

-- name: ask_vacuum
SELECT current_setting('autovacuum')::boolean AND NOT EXISTS (
    SELECT FROM pg_class WHERE relnamespace = to_regnamespace(%(schema)s) AND 'autovacuum_enabled=false' = ANY (reloptions))

-- name: ask_tally
SELECT count(*)
FROM (SELECT lane, status, count(*) AS count FROM {schema}.tasks GROUP BY lane, status) AS real
FULL JOIN (SELECT lane, status, sum(count) AS count FROM {schema}.tally GROUP BY lane, status HAVING sum(count) <> 0) AS told
    USING (lane, status)
WHERE real.count IS DISTINCT FROM told.count

-- name: ask_turns
SELECT (SELECT count(*) FROM {schema}.tasks AS t WHERE t.status = 'pending'
          AND NOT EXISTS (SELECT FROM {schema}.ready AS r WHERE (r.lane, r.rank, r.id, r.version) = (t.lane, t.rank, t.id, t.version))
          AND NOT EXISTS (SELECT FROM {schema}.coming AS c WHERE (c.available_at, c.id, c.version) = (t.available_at, t.id, t.version)))
     + (SELECT count(*) FROM {schema}.tasks AS t WHERE t.status = 'running'
          AND NOT EXISTS (SELECT FROM {schema}.leases AS l WHERE l.lease_id = t.lease_id AND t.id = ANY (l.ids)))
