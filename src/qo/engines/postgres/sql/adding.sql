-- Tasks come in.

-- name: lanes
SELECT n, lane_group, queue, type, needs, priority FROM {schema}.lanes WHERE n = ANY (%(lane)s::integer[])

-- name: make_lanes
-- Returns the lanes of these names, old and new. A lane that another transaction adds at the same time may be missing.
WITH wanted AS MATERIALIZED (
    SELECT queue, type, needs::text[] COLLATE "C" AS needs, priority
    FROM unnest(%(queue)s::text[], %(type)s::text[], %(needs)s::text[], %(priority)s::integer[]) AS new (queue, type, needs, priority), {allowed}
),
old AS MATERIALIZED (SELECT l.* FROM {schema}.lanes AS l JOIN wanted USING (queue, type, needs, priority)),
new AS MATERIALIZED (SELECT queue, type, needs, priority FROM wanted EXCEPT SELECT queue, type, needs, priority FROM old),
made_groups AS (
    INSERT INTO {schema}.lane_groups (queue, needs) SELECT DISTINCT queue, needs FROM new ORDER BY queue, needs
    ON CONFLICT (queue, needs) DO UPDATE SET queue = excluded.queue  -- so that it is returned
    RETURNING n, queue, needs
),
made AS (
    INSERT INTO {schema}.lanes (queue, type, needs, priority, lane_group)
    SELECT queue, type, needs, priority, made_groups.n FROM new JOIN made_groups USING (queue, needs)
    ORDER BY queue, type, needs, priority
    ON CONFLICT DO NOTHING
    RETURNING n, lane_group, queue, type, needs, priority
)
SELECT * FROM made UNION ALL SELECT n, lane_group, queue, type, needs, priority FROM old

-- name: given
-- The head of both additions. What many tasks have in common travels once: `kind` is a task's place in the lists of
-- lanes, priorities, ... Tasks that share a `run_at` are ranked apart by their stamps, so that a batch keeps its order: see
-- `created` in model/task.py.
WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8) AS now FROM {allowed}
),
given AS MATERIALIZED (
    SELECT g.id, g.next_id, g.payload, g.idempotency_key, g.trace_id, g.run_at, stamp.at AS created_at, due.at AS available_at,
           greatest(coalesce(g.run_at - (clock.now - stamp.at), due.at), stamp.at) + k.priority * k.ageing AS rank,
           k.lane, k.lane_group, k.priority, k.timeout, k.max_retries, k.retry, k.room
    FROM clock,
         unnest(%(id)s::uuid[], %(kind)s::integer[], %(payload)s::bytea[], %(delay)s::float8[], %(run_at)s::float8[],
                %(idempotency_key)s::text[], %(trace_id)s::text[], %(next_id)s::uuid[]) WITH ORDINALITY
             AS g (id, kind, payload, delay, run_at, idempotency_key, trace_id, next_id, nth),
         LATERAL (SELECT (%(lane)s::integer[])[g.kind] AS lane, (%(lane_group)s::integer[])[g.kind] AS lane_group,
                         (%(priority)s::float8[])[g.kind] AS priority,
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
    INSERT INTO {schema}.ready (lane, rank, id, version, due_at, lane_group, weight)
    SELECT lane, rank, id, 1, greatest(available_at, created_at), lane_group, round(rank - greatest(available_at, created_at))
    FROM given, clock WHERE available_at <= clock.now ORDER BY lane, rank
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
-- `last` is the last task under a key: the first one, under the id that follows from the key, or one that followed it.
-- A submission that makes another follow writes the key's row of `followers`: of several at once, one does.
{given}
last AS MATERIALIZED (
    SELECT g.id AS first, f.last AS seen,
           CASE WHEN t.id IS NULL THEN f.last IS NOT NULL
                ELSE t.completed_at IS NOT NULL AND g.created_at - t.created_at >= g.room END AS is_over
    FROM given AS g
         LEFT JOIN {schema}.followers AS f ON f.first = g.id AND g.idempotency_key IS NOT NULL
         LEFT JOIN {schema}.tasks AS t ON t.id = coalesce(f.last, g.id)
),
following AS (
    INSERT INTO {schema}.followers AS f (first, last, since)
    SELECT g.id, g.next_id, g.created_at FROM given AS g JOIN last ON last.first = g.id
    WHERE last.is_over AND g.idempotency_key IS NOT NULL AND g.next_id <> g.id
      AND NOT EXISTS (SELECT FROM {schema}.tasks AS made WHERE made.id = g.next_id)  -- by an earlier try of this submission
    ORDER BY g.id
    ON CONFLICT (first) DO UPDATE SET last = excluded.last, since = excluded.since
        WHERE f.last = (SELECT last.seen FROM last WHERE last.first = f.first)
    RETURNING f.first, f.last
),
landed AS (
    INSERT INTO {schema}.tasks (id, submit_id, available_at, rank, created_at, updated_at, pended_at, timeout, lane, version,
                                max_retries, priority, status, retry, idempotency_key, trace_id, run_at, payload)
    SELECT coalesce(f.last, g.id), %(submit_id)s, available_at, rank, created_at, created_at, created_at, timeout, lane, 1,
           max_retries, priority, 'pending', retry, idempotency_key, trace_id, run_at, payload
    FROM given AS g JOIN last ON last.first = g.id LEFT JOIN following AS f ON f.first = g.id
    WHERE f.last IS NOT NULL OR last.seen IS NULL
    ON CONFLICT (id) DO NOTHING
    RETURNING id, lane, rank, available_at, created_at, version
),
made_ready AS (
    INSERT INTO {schema}.ready (lane, rank, id, version, due_at, lane_group, weight)
    SELECT lane, rank, id, version, greatest(available_at, created_at), (SELECT lane_group FROM {schema}.lanes WHERE n = lane),
           round(rank - greatest(available_at, created_at))
    FROM landed, clock WHERE available_at <= clock.now ORDER BY lane, rank
),
scheduled AS (
    INSERT INTO {schema}.coming (available_at, id, version)
    SELECT available_at, id, version FROM landed, clock WHERE available_at > clock.now
),
counted AS (
    INSERT INTO {schema}.tally AS t (slot, lane, status, count)
    SELECT pg_backend_pid(), lane, 'pending', count(*) FROM landed GROUP BY lane
    ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count
),
told AS MATERIALIZED (SELECT pg_notify(%(channel)s, '') FROM (SELECT FROM landed LIMIT 1) AS one)
SELECT id::text FROM landed WHERE (SELECT count(*) FROM told) >= 0

-- name: last
-- The last tasks under the keys of a submission that did not land as new.
SELECT first::text, last::text FROM {schema}.followers WHERE first = ANY (%(id)s::uuid[])

-- name: added
-- After a lost answer: which of these tasks does the store have from us?
SELECT id::text FROM {schema}.tasks
WHERE id = ANY (%(id)s::uuid[] || %(next_id)s::uuid[]) AND submit_id = %(submit_id)s
