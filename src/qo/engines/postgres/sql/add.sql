-- New tasks.

-- name: new_tasks
-- The beginning of `add_new` and `add`. Values that many tasks share are sent once: `template` is the index of a task's values
-- in the arrays of lanes, priorities, ... Each task of a batch is created 3 microseconds after the one before it. Its rank
-- includes that difference also if tasks share a `run_at`, so that the batch keeps its order: see `created` in model/task.py.
WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8) AS now FROM {allowed}
),
new_task AS MATERIALIZED (
    SELECT new.id, new.next_id, new.payload, new.idempotency_key, new.trace_id, new.run_at, new.batch, created.at AS created_at, due.at AS available_at,
           greatest(coalesce(new.run_at - (clock.now - created.at), due.at), created.at) + shared.priority * shared.ageing AS rank,
           shared.lane, shared.lane_group, shared.priority, shared.timeout, shared.max_retries, shared.retry, shared."window", shared.until_started
    FROM clock,
         unnest(%(id)s::uuid[], %(template)s::integer[], %(payload)s::bytea[], %(delay)s::float8[], %(run_at)s::float8[],
                %(idempotency_key)s::text[], %(trace_id)s::text[], %(next_id)s::uuid[], %(batch)s::text[]) WITH ORDINALITY
             AS new (id, template, payload, delay, run_at, idempotency_key, trace_id, next_id, batch, nth),
         LATERAL (SELECT (%(lane)s::integer[])[new.template] AS lane, (%(lane_group)s::integer[])[new.template] AS lane_group,
                         (%(priority)s::float8[])[new.template] AS priority,
                         (%(ageing)s::float8[])[new.template] AS ageing, (%(timeout)s::float8[])[new.template] AS timeout,
                         (%(max_retries)s::integer[])[new.template] AS max_retries, (%(retry)s::text[])[new.template] AS retry,
                         (%(window)s::float8[])[new.template] AS "window",
                         (%(until_started)s::integer[])[new.template] = 1 AS until_started) AS shared,
         LATERAL (SELECT clock.now - 0.000003::float8 * (%(size)s::integer - new.nth) AS at) AS created,
         LATERAL (SELECT coalesce(new.run_at, created.at + new.delay) AS at) AS due
    ORDER BY new.id
),

-- name: add_new
-- Adds tasks with random ids. Without ON CONFLICT it takes a quarter less time than `add`. If an id exists nevertheless, nothing is
-- written, and the caller uses `add`.
{new_tasks}
inserted AS (
    INSERT INTO {schema}.tasks (id, submit_id, available_at, rank, created_at, updated_at, pended_at, timeout, lane, version,
                                max_retries, priority, status, retry, idempotency_key, trace_id, run_at, batch, payload)
    SELECT id, %(submit_id)s, available_at, rank, created_at, created_at, created_at, timeout, lane, 1,
           max_retries, priority, 'pending', retry, idempotency_key, trace_id, run_at, batch, payload
    FROM new_task
),
made_ready AS (
    INSERT INTO {schema}.ready (lane, rank, created_at, id, version, due_at, lane_group, weight)
    SELECT lane, rank, created_at, id, 1, greatest(available_at, created_at), lane_group,
           round(rank - greatest(available_at, created_at))
    FROM new_task, clock WHERE available_at <= clock.now ORDER BY lane, rank, created_at
),
scheduled AS (
    INSERT INTO {schema}.coming (available_at, id, version)
    SELECT available_at, id, 1 FROM new_task, clock WHERE available_at > clock.now
),
counted AS (
    INSERT INTO {schema}.tally AS t (slot, lane, status, count)
    SELECT pg_backend_pid(), lane, 'pending', count(*) FROM new_task GROUP BY lane
    ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count
)
SELECT pg_notify(%(channel)s, '')::text

-- name: add
-- The first task under an idempotency key has an id derived from the key. Once the key's window has passed, another task may
-- follow it, and `followers` names the last one. Of several transactions that add a follower at the same time, only the one
-- that changes the row of `followers` does.
{new_tasks}
last AS MATERIALIZED (
    SELECT new.id AS first, f.last AS seen,
           CASE WHEN t.id IS NULL THEN f.last IS NOT NULL
                ELSE (t.completed_at IS NOT NULL OR new.until_started AND t.status = 'running')
                     AND new.created_at - t.created_at >= new."window" END AS is_over
    FROM new_task AS new
         LEFT JOIN {schema}.followers AS f ON f.first = new.id AND new.idempotency_key IS NOT NULL
         LEFT JOIN {schema}.tasks AS t ON t.id = coalesce(f.last, new.id)
),
following AS (
    INSERT INTO {schema}.followers AS f (first, last, since)
    SELECT new.id, new.next_id, new.created_at FROM new_task AS new JOIN last ON last.first = new.id
    WHERE last.is_over AND new.idempotency_key IS NOT NULL AND new.next_id <> new.id
      AND NOT EXISTS (SELECT FROM {schema}.tasks AS made WHERE made.id = new.next_id)  -- inserted by an earlier attempt
    ORDER BY new.id
    ON CONFLICT (first) DO UPDATE SET last = excluded.last, since = excluded.since
        WHERE f.last = (SELECT last.seen FROM last WHERE last.first = f.first)
    RETURNING f.first, f.last
),
inserted AS (
    INSERT INTO {schema}.tasks (id, submit_id, available_at, rank, created_at, updated_at, pended_at, timeout, lane, version,
                                max_retries, priority, status, retry, idempotency_key, trace_id, run_at, batch, payload)
    SELECT coalesce(f.last, new.id), %(submit_id)s, available_at, rank, created_at, created_at, created_at, timeout, lane, 1,
           max_retries, priority, 'pending', retry, idempotency_key, trace_id, run_at, batch, payload
    FROM new_task AS new JOIN last ON last.first = new.id LEFT JOIN following AS f ON f.first = new.id
    WHERE f.last IS NOT NULL OR last.seen IS NULL
    ON CONFLICT (id) DO NOTHING
    RETURNING id, lane, rank, available_at, created_at, version
),
made_ready AS (
    INSERT INTO {schema}.ready (lane, rank, created_at, id, version, due_at, lane_group, weight)
    SELECT lane, rank, created_at, id, version, greatest(available_at, created_at),
           (SELECT lane_group FROM {schema}.lanes WHERE n = lane),
           round(rank - greatest(available_at, created_at))
    FROM inserted, clock WHERE available_at <= clock.now ORDER BY lane, rank, created_at
),
scheduled AS (
    INSERT INTO {schema}.coming (available_at, id, version)
    SELECT available_at, id, version FROM inserted, clock WHERE available_at > clock.now
),
counted AS (
    INSERT INTO {schema}.tally AS t (slot, lane, status, count)
    SELECT pg_backend_pid(), lane, 'pending', count(*) FROM inserted GROUP BY lane
    ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count
),
notified AS MATERIALIZED (SELECT pg_notify(%(channel)s, '') FROM (SELECT FROM inserted LIMIT 1) AS one)
SELECT id::text FROM inserted WHERE (SELECT count(*) FROM notified) >= 0  -- a CTE that is not read does not run

-- name: last
-- The last tasks under idempotency keys, by the first ones.
SELECT first::text, last::text FROM {schema}.followers WHERE first = ANY (%(id)s::uuid[])

-- name: added
-- After a lost connection: the tasks that an earlier attempt of the same call has inserted.
SELECT id::text FROM {schema}.tasks
WHERE id = ANY (%(id)s::uuid[] || %(next_id)s::uuid[]) AND submit_id = %(submit_id)s
