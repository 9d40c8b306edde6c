-- Changes and deletions of tasks.

-- name: complete
-- Completes tasks that are held under their lease and have neither failed nor a log yet. Their columns contain all their events
-- (`own_events`), so nothing is written to `events`.
WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8) AS now FROM {allowed}
),
change AS MATERIALIZED (
    SELECT * FROM unnest(%(id)s::uuid[], %(lease_id)s::text[], %(result)s::bytea[], %(started_at)s::float8[], %(log)s::text[])
        AS c (id, lease_id, result, started_at, log) ORDER BY id
),
completed AS (
    UPDATE {schema}.tasks AS t
    SET status = 'completed', result = c.result, completed_at = clock.now, lease_expires_at = NULL,
        started_at = coalesce(c.started_at, t.started_at), updated_at = clock.now, version = version + 1,
        log = c.log, log_version = CASE WHEN c.log IS NOT NULL THEN version + 1 END
    FROM change AS c, clock
    WHERE t.id = c.id AND t.status = 'running' AND t.lease_id = c.lease_id AND t.error IS NULL AND t.log IS NULL
    RETURNING t.id, t.lane, t.lease_id
),
settled AS (
    UPDATE {schema}.leases AS l SET remaining = l.remaining - s.number
    FROM (SELECT lease_id, count(*) AS number FROM completed GROUP BY lease_id ORDER BY lease_id) AS s
    WHERE l.lease_id = s.lease_id
),
counted AS (
    INSERT INTO {schema}.tally AS t (slot, lane, status, count)
    SELECT pg_backend_pid(), lane, side.status, side.sign * number
    FROM (SELECT lane, count(*) AS number FROM completed GROUP BY lane) AS moved,
         (VALUES ('completed', 1), ('running', -1)) AS side (status, sign)
    WHERE EXISTS (SELECT FROM {schema}.lanes WHERE lanes.n = moved.lane)  -- a damaged task may name none
    ORDER BY lane, status
    ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count
)
SELECT id::text FROM completed

-- name: change
-- Applies any changes. The rows are locked first, and the events that the old columns contain are copied to `events` before the
-- columns are overwritten.
WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8) AS now FROM {allowed}
),
change AS MATERIALIZED (
    SELECT * FROM unnest(%(id)s::uuid[], %(guard)s::text[], %(to)s::text[], %(lease_id)s::text[], %(grace)s::float8[],
                         %(delay)s::float8[], %(lease)s::float8[], %(failures)s::integer[],
                         %(result)s::bytea[], %(error)s::text[], %(failure_kind)s::text[],
                         %(started_at)s::float8[], %(run_at)s::float8[], %(promotion)s::float8[],
                         %(priority)s::integer[], %(new_lane)s::integer[], %(log)s::text[], %(progress)s::float8[],
                         %(progress_text)s::text[], %(payload)s::bytea[])
        AS c (id, guard, "to", lease_id, grace, delay, lease, failures, result, error, failure_kind, started_at, run_at,
              promotion, priority, new_lane, log, progress, progress_text, payload)
),
locked AS MATERIALIZED (
    SELECT t AS task, t.id, t.lane, t.status, t.lease_id, t.lease_expires_at, t.rank, t.available_at, t.created_at,
           t.version
    FROM change JOIN {schema}.tasks AS t USING (id) ORDER BY t.id FOR UPDATE OF t
),
permitted AS MATERIALIZED (
    SELECT c.*, l.task, l.lane, l.status, l.lease_id AS held_by, l.rank, l.available_at, l.created_at, l.version
    FROM change AS c JOIN locked AS l USING (id), clock
    WHERE CASE c.guard
        WHEN 'held' THEN l.status = 'running' AND l.lease_id = c.lease_id
        WHEN 'expired' THEN l.status = 'running' AND l.lease_id = c.lease_id AND l.lease_expires_at <= clock.now - c.grace
        WHEN 'waiting' THEN l.status = 'pending'
        WHEN 'not_due' THEN l.status = 'pending' AND l.available_at > clock.now
        WHEN 'blocked' THEN l.status = 'pending' AND l.available_at = 6.4e9::float8
        WHEN 'unfinished' THEN l.status IN ('pending', 'running')
        WHEN 'ended' THEN l.status IN ('completed', 'failed', 'cancelled')
        WHEN 'replayable' THEN l.status IN ('failed', 'cancelled', 'archived')
        WHEN 'finished' THEN l.status IN ('completed', 'failed', 'cancelled', 'archived')
    END AND (c.new_lane IS NULL OR EXISTS (SELECT FROM {schema}.lanes WHERE lanes.n = c.new_lane))
),
copied_events AS (
    INSERT INTO {schema}.events (id, version, at, status, attempt, failures, worker_id, error, available_at, log)
    SELECT e.id, e.version, e.at, e.status, e.attempt, e.failures, e.worker_id, e.error, e.available_at,
           CASE WHEN e.version = (p.task).log_version THEN (p.task).log END
    FROM permitted AS p, {schema}.own_events(p.task) AS e WHERE p."to" <> 'running'
),
changed AS (
    UPDATE {schema}.tasks AS t
    SET status = p."to",
        available_at = new.available_at,
        rank = CASE WHEN p.delay IS NULL AND p.run_at IS NULL AND p.promotion IS NULL THEN t.rank
                    ELSE new.due_at + coalesce(p.promotion, greatest(0, t.rank - greatest(t.available_at, t.created_at))) END,
        lane = coalesce(p.new_lane, t.lane),
        priority = coalesce(p.priority, t.priority),
        shelf = CASE WHEN p."to" IN ('failed', 'cancelled', 'archived') THEN p."to" END,
        failures = coalesce(p.failures, t.failures),
        result = CASE WHEN p."to" <> 'pending' THEN coalesce(p.result, t.result) END,
        error = CASE WHEN p."to" <> 'completed' THEN coalesce(p.error, t.error) END,
        failure_kind = CASE WHEN p."to" <> 'completed' THEN coalesce(p.failure_kind, t.failure_kind) END,
        archived_from = CASE WHEN p."to" = 'archived' THEN t.status END,
        worker_id = CASE WHEN p."to" <> 'pending' THEN t.worker_id END,
        lease_expires_at = clock.now + p.lease,
        started_at = CASE WHEN p."to" <> 'pending' THEN coalesce(p.started_at, t.started_at) END,
        completed_at = CASE WHEN p."to" NOT IN ('pending', 'running') THEN coalesce(t.completed_at, clock.now) END,
        updated_at = clock.now,
        version = t.version + 1,
        payload = coalesce(p.payload, t.payload),
        progress = coalesce(p.progress, t.progress),
        progress_text = CASE WHEN p.progress IS NULL THEN t.progress_text ELSE p.progress_text END,
        log = CASE WHEN p."to" = 'running' THEN t.log ELSE p.log END,
        log_version = CASE WHEN p."to" = 'running' THEN t.log_version WHEN p.log IS NOT NULL THEN t.version + 1 END,
        pended_at = CASE p."to" WHEN 'pending' THEN clock.now WHEN 'running' THEN t.pended_at END,
        claimed = CASE WHEN p."to" = 'running' THEN t.claimed END,
        claimed_at = CASE WHEN p."to" = 'running' THEN t.claimed_at END
    FROM permitted AS p, clock,
         LATERAL (SELECT CASE WHEN p.delay IS NOT NULL THEN clock.now + p.delay
                              WHEN p.run_at IS NOT NULL THEN greatest(clock.now, p.run_at) END AS set_at) AS moved,
         LATERAL (SELECT coalesce(moved.set_at, p.available_at) AS available_at,
                         coalesce(moved.set_at, greatest(p.available_at, p.created_at)) AS due_at) AS new
    WHERE t.id = p.id
    RETURNING t.id, t.status, t.lane, t.rank, t.available_at, t.created_at, t.version
),
unready AS (
    DELETE FROM {schema}.ready USING permitted AS p
    WHERE p.status = 'pending'
      AND (ready.lane, ready.rank, ready.created_at, ready.id, ready.version) = (p.lane, p.rank, p.created_at, p.id, p.version)
),
unscheduled AS (
    DELETE FROM {schema}.coming USING permitted AS p
    WHERE p.status = 'pending' AND (coming.available_at, coming.id, coming.version) = (p.available_at, p.id, p.version)
),
made_ready AS (
    INSERT INTO {schema}.ready (lane, rank, created_at, id, version, due_at, lane_group, weight)
    SELECT lane, rank, created_at, id, version, greatest(available_at, created_at),
           (SELECT lane_group FROM {schema}.lanes WHERE n = lane),
           round(rank - greatest(available_at, created_at))
    FROM changed, clock WHERE status = 'pending' AND available_at <= clock.now
),
scheduled AS (
    INSERT INTO {schema}.coming (available_at, id, version)
    SELECT available_at, id, version FROM changed, clock WHERE status = 'pending' AND available_at > clock.now
),
settled AS (
    UPDATE {schema}.leases AS l SET remaining = l.remaining - s.number, expires_at = least(l.expires_at, s.soonest)
    FROM (SELECT held_by, count(*) FILTER (WHERE "to" <> 'running') AS number,
                 min(clock.now + lease) FILTER (WHERE "to" = 'running') AS soonest
          FROM permitted, clock WHERE status = 'running' GROUP BY held_by ORDER BY held_by) AS s
    WHERE l.lease_id = s.held_by AND (s.number > 0 OR s.soonest < l.expires_at)
),
counted AS (
    INSERT INTO {schema}.tally AS t (slot, lane, status, count)
    SELECT pg_backend_pid(), lane, status, sum(number)
    FROM (SELECT lane, status, -count(*) AS number FROM permitted WHERE "to" <> status OR new_lane <> lane GROUP BY lane, status
          UNION ALL
          SELECT coalesce(new_lane, lane), "to", count(*) FROM permitted WHERE "to" <> status OR new_lane <> lane
          GROUP BY coalesce(new_lane, lane), "to") AS moved
    WHERE EXISTS (SELECT FROM {schema}.lanes WHERE lanes.n = moved.lane)  -- a damaged task may name none
    GROUP BY lane, status
    ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count
),
notified AS MATERIALIZED (
    SELECT pg_notify(%(channel)s, '') FROM (SELECT FROM permitted WHERE "to" = 'pending' LIMIT 1) AS one
)
SELECT id::text FROM changed WHERE (SELECT count(*) FROM notified) >= 0  -- a CTE that is not read does not run
UNION ALL  -- a repeat of a change that was applied before
SELECT l.id::text FROM change AS c JOIN locked AS l USING (id)
WHERE c.guard = 'held' AND l.lease_id = c.lease_id AND l.status = c."to" AND l.status <> 'running'

-- name: delete
-- Deletes tasks that are finished or set aside.
WITH deleted AS (
    DELETE FROM {schema}.tasks USING {allowed}
    WHERE id = ANY (%(id)s::uuid[]) AND (completed_at IS NOT NULL OR status = 'damaged')
    RETURNING id, lane, status
),
unquarantined AS (
    DELETE FROM {schema}.notes USING deleted WHERE deleted.status = 'damaged' AND notes.name = 'quarantine/tasks/' || deleted.id::text
),
unfollowed AS (DELETE FROM {schema}.followers USING deleted WHERE followers.last = deleted.id),
deleted_events AS (DELETE FROM {schema}.events USING deleted WHERE events.id = deleted.id),
counted AS (
    INSERT INTO {schema}.tally AS t (slot, lane, status, count)
    SELECT pg_backend_pid(), lane, status, -count(*) FROM deleted
    WHERE status <> 'damaged' AND EXISTS (SELECT FROM {schema}.lanes WHERE lanes.n = deleted.lane) GROUP BY lane, status
    ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count
)
SELECT id::text FROM deleted

-- name: stored_format
SELECT max(version) FROM {schema}.schema_version

-- name: set_aside
-- Removes tasks that cannot be read from all indexes and counts. Of the rows themselves only the status changes. Returns the
-- ids of all rows that are now marked, also by an earlier attempt; a task may have been deleted since it was read.
WITH damaged AS MATERIALIZED (
    SELECT id, lane, status, lease_id FROM {schema}.tasks, {allowed}
    WHERE id = ANY (%(id)s::uuid[]) AND status <> 'damaged' ORDER BY id FOR UPDATE OF tasks
),
marked AS (UPDATE {schema}.tasks AS t SET status = 'damaged', shelf = NULL FROM damaged WHERE t.id = damaged.id),
unready AS (DELETE FROM {schema}.ready USING damaged WHERE ready.id = damaged.id),
unscheduled AS (DELETE FROM {schema}.coming USING damaged WHERE coming.id = damaged.id),
settled AS (
    UPDATE {schema}.leases AS l SET remaining = l.remaining - s.number
    FROM (SELECT lease_id, count(*) AS number FROM damaged WHERE status = 'running' GROUP BY lease_id ORDER BY lease_id) AS s
    WHERE l.lease_id = s.lease_id
),
counted AS (
    INSERT INTO {schema}.tally AS t (slot, lane, status, count)
    SELECT pg_backend_pid(), lane, status, -count(*) FROM damaged
    WHERE status = ANY (%(statuses)s::text[]) AND EXISTS (SELECT FROM {schema}.lanes WHERE lanes.n = damaged.lane)
    GROUP BY lane, status
    ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count
)
SELECT id::text FROM damaged
UNION ALL SELECT id::text FROM {schema}.tasks WHERE id = ANY (%(id)s::uuid[]) AND status = 'damaged'
