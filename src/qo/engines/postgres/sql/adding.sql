-- Tasks come in.

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
    SELECT g.id, g.payload, g.idempotency_key, g.trace_id, g.run_at, stamp.at AS created_at, due.at AS available_at,
           greatest(due.at, stamp.at) + k.priority * k.ageing AS rank,
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
                                max_retries, priority, status, retry, idempotency_key, trace_id, run_at, payload)
    SELECT id, %(submit_id)s, available_at, rank, created_at, created_at, created_at, timeout, lane, 1,
           max_retries, priority, 'pending', retry, idempotency_key, trace_id, run_at, payload
    FROM given
),
made_ready AS (
    INSERT INTO {schema}.ready (lane, rank, id, version, due_at)
    SELECT lane, rank, id, 1, greatest(available_at, created_at) FROM given, clock WHERE available_at <= clock.now ORDER BY lane, rank
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
                                max_retries, priority, status, retry, idempotency_key, trace_id, run_at, payload)
    SELECT id, %(submit_id)s, available_at, rank, created_at, created_at, created_at, timeout, lane, 1,
           max_retries, priority, 'pending', retry, idempotency_key, trace_id, run_at, payload
    FROM given
    ON CONFLICT (id) DO NOTHING
    RETURNING id, lane, rank, available_at, created_at, version
),
leaving AS MATERIALIZED (  -- finished, and their key's window is over: they make room
    SELECT t AS task, t.id, t.lane, t.status
    FROM given JOIN {schema}.tasks AS t ON t.id = given.id
    WHERE given.idempotency_key IS NOT NULL AND t.completed_at IS NOT NULL AND given.created_at - t.created_at >= given.room
    ORDER BY t.id FOR UPDATE OF t
),
kept AS (
    INSERT INTO {schema}.events (id, version, at, status, attempt, failures, worker_id, error, available_at)
    SELECT e.id, e.version, e.at, e.status, e.attempt, e.failures, e.worker_id, e.error, e.available_at
    FROM leaving, {schema}.own_events(leaving.task) AS e
),
replaced AS (
    UPDATE {schema}.tasks AS t
    SET submit_id = %(submit_id)s, available_at = g.available_at, rank = g.rank, created_at = g.created_at,
        updated_at = g.created_at, pended_at = g.created_at, timeout = g.timeout, lane = g.lane, version = t.version + 1,
        max_retries = g.max_retries, priority = g.priority, status = 'pending', shelf = NULL, retry = g.retry,
        idempotency_key = g.idempotency_key, trace_id = g.trace_id, run_at = g.run_at, payload = g.payload, attempt = 0, failures = 0,
        claimed = NULL, started_at = NULL, completed_at = NULL, lease_expires_at = NULL, lease_id = NULL,
        worker_id = NULL, error = NULL, result = NULL
    FROM given AS g JOIN leaving USING (id)
    WHERE t.id = g.id
    RETURNING t.id, t.lane, t.rank, t.available_at, t.created_at, t.version
),
news AS MATERIALIZED (SELECT * FROM landed UNION ALL SELECT * FROM replaced),
made_ready AS (
    INSERT INTO {schema}.ready (lane, rank, id, version, due_at)
    SELECT lane, rank, id, version, greatest(available_at, created_at) FROM news, clock WHERE available_at <= clock.now ORDER BY lane, rank
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
