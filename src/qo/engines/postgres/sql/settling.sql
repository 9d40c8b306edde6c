-- Tasks change, end, and are forgotten.

-- name: complete
-- The ordinary end: held, and never failed before, so that its columns go on telling all its events.
WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8) AS now FROM {allowed}
),
change AS MATERIALIZED (
    SELECT * FROM unnest(%(id)s::uuid[], %(lease_id)s::text[], %(result)s::bytea[], %(started_at)s::float8[])
        AS c (id, lease_id, result, started_at) ORDER BY id
),
done AS (
    UPDATE {schema}.tasks AS t
    SET status = 'completed', result = c.result, completed_at = clock.now, lease_expires_at = NULL,
        started_at = coalesce(c.started_at, t.started_at), updated_at = clock.now, version = version + 1
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
WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8) AS now FROM {allowed}
),
change AS MATERIALIZED (
    SELECT * FROM unnest(%(id)s::uuid[], %(guard)s::text[], %(to)s::text[], %(lease_id)s::text[], %(grace)s::float8[],
                         %(delay)s::float8[], %(lease)s::float8[], %(failures)s::integer[],
                         %(result)s::bytea[], %(error)s::text[], %(failure_kind)s::text[],
                         %(started_at)s::float8[])
        AS c (id, guard, "to", lease_id, grace, delay, lease, failures, result, error, failure_kind, started_at)
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
        WHEN 'waiting' THEN l.status = 'pending'
        WHEN 'unfinished' THEN l.status IN ('pending', 'running')
        WHEN 'ended' THEN l.status IN ('completed', 'failed', 'cancelled')
        WHEN 'replayable' THEN l.status IN ('failed', 'cancelled', 'archived')
    END
),
kept AS (
    INSERT INTO {schema}.events (id, version, at, status, attempt, failures, worker_id, error, available_at)
    SELECT e.id, e.version, e.at, e.status, e.attempt, e.failures, e.worker_id, e.error, e.available_at
    FROM allowed AS a, {schema}.own_events(a.task) AS e WHERE a."to" <> 'running'
),
changed AS (
    UPDATE {schema}.tasks AS t
    SET status = a."to",
        available_at = new.available_at,
        rank = coalesce(clock.now + a.delay + greatest(0, t.rank - greatest(t.available_at, t.created_at)), t.rank),
        shelf = CASE WHEN a."to" IN ('failed', 'cancelled', 'archived') THEN a."to" END,
        failures = coalesce(a.failures, t.failures),
        result = CASE WHEN a."to" <> 'pending' THEN coalesce(a.result, t.result) END,
        error = CASE WHEN a."to" <> 'completed' THEN coalesce(a.error, t.error) END,
        failure_kind = CASE WHEN a."to" <> 'completed' THEN coalesce(a.failure_kind, t.failure_kind) END,
        archived_from = CASE WHEN a."to" = 'archived' THEN t.status END,
        worker_id = CASE WHEN a."to" <> 'pending' THEN t.worker_id END,
        lease_expires_at = clock.now + a.lease,
        started_at = CASE WHEN a."to" <> 'pending' THEN coalesce(a.started_at, t.started_at) END,
        completed_at = CASE WHEN a."to" NOT IN ('pending', 'running') THEN coalesce(t.completed_at, clock.now) END,
        updated_at = clock.now,
        version = t.version + 1,
        pended_at = CASE a."to" WHEN 'pending' THEN clock.now WHEN 'running' THEN t.pended_at END,
        claimed = CASE WHEN a."to" = 'running' THEN t.claimed END,
        claimed_at = CASE WHEN a."to" = 'running' THEN t.claimed_at END
    FROM allowed AS a, clock,
         LATERAL (SELECT coalesce(clock.now + a.delay, a.available_at) AS available_at) AS new
    WHERE t.id = a.id
    RETURNING t.id, t.status, t.lane, t.rank, t.available_at, t.created_at, t.version
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
    INSERT INTO {schema}.ready (lane, rank, id, version, due_at, lane_group, weight)
    SELECT lane, rank, id, version, greatest(available_at, created_at), (SELECT lane_group FROM {schema}.lanes WHERE n = lane),
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
    DELETE FROM {schema}.tasks USING {allowed}
    WHERE id = ANY (%(id)s::uuid[]) AND (completed_at IS NOT NULL OR status = 'damaged')
    RETURNING id, lane, status
),
undone AS (  -- what says that a task is damaged
    DELETE FROM {schema}.notes USING gone WHERE gone.status = 'damaged' AND notes.name = 'quarantine/tasks/' || gone.id::text
),
unfollowed AS (DELETE FROM {schema}.followers USING gone WHERE followers.last = gone.id),
forgotten AS (DELETE FROM {schema}.events USING gone WHERE events.id = gone.id),
counted AS (
    INSERT INTO {schema}.tally AS t (slot, lane, status, count)
    SELECT pg_backend_pid(), lane, status, -count(*) FROM gone WHERE status <> 'damaged' GROUP BY lane, status
    ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count
)
SELECT id::text FROM gone

-- name: stored_format
SELECT max(version) FROM {schema}.schema_version

-- name: set_aside
-- Tasks that cannot be read: out of every list, and out of the counts. All but their status stays as it is.
WITH bad AS MATERIALIZED (
    SELECT id, lane, status, lease_id FROM {schema}.tasks, {allowed}
    WHERE id = ANY (%(id)s::uuid[]) AND status <> 'damaged' ORDER BY id FOR UPDATE OF tasks
),
marked AS (UPDATE {schema}.tasks AS t SET status = 'damaged', shelf = NULL FROM bad WHERE t.id = bad.id),
unready AS (DELETE FROM {schema}.ready USING bad WHERE ready.id = bad.id),
unscheduled AS (DELETE FROM {schema}.coming USING bad WHERE coming.id = bad.id),
settled AS (
    UPDATE {schema}.leases AS l SET remaining = l.remaining - s.number
    FROM (SELECT lease_id, count(*) AS number FROM bad WHERE status = 'running' GROUP BY lease_id ORDER BY lease_id) AS s
    WHERE l.lease_id = s.lease_id
),
counted AS (
    INSERT INTO {schema}.tally AS t (slot, lane, status, count)
    SELECT pg_backend_pid(), lane, status, -count(*) FROM bad WHERE status = ANY (%(statuses)s::text[]) GROUP BY lane, status
    ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count
)
SELECT id::text, status FROM bad

-- name: fold_empty
-- Four statements remove lanes without tasks; each leaves consistent tables. First, the counts of lanes whose counts add up to
-- zero are moved to slot 0. Rows that another transaction has locked are left to the next sweep.
WITH empty AS MATERIALIZED (
    SELECT lane FROM (SELECT lane, status, sum(count) AS number FROM {schema}.tally GROUP BY lane, status) AS total
    GROUP BY lane HAVING bool_and(number = 0) LIMIT %(step)s
),
gone AS (
    DELETE FROM {schema}.tally WHERE (slot, lane, status) IN (
        SELECT t.slot, t.lane, t.status FROM {schema}.tally AS t JOIN empty USING (lane), {allowed}
        WHERE t.slot <> 0 ORDER BY t.slot, t.lane, t.status FOR UPDATE OF t SKIP LOCKED)
    RETURNING lane, status, count
)
INSERT INTO {schema}.tally AS t (slot, lane, status, count)
SELECT 0, lane, status, sum(count) FROM gone GROUP BY lane, status ORDER BY lane, status
ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count

-- name: drop_zeros
DELETE FROM {schema}.tally WHERE (slot, lane, status) IN (
    SELECT t.slot, t.lane, t.status FROM {schema}.tally AS t, {allowed}
    WHERE t.slot = 0 AND t.count = 0 ORDER BY t.slot, t.lane, t.status FOR UPDATE OF t SKIP LOCKED)

-- name: remove_lanes
-- The tasks themselves are asked too: counts may be wrong, and damaged tasks are not counted. The foreign key of `tally` keeps a
-- lane to which another transaction adds a task after this statement began.
DELETE FROM {schema}.lanes WHERE n IN (
    SELECT l.n FROM {schema}.lanes AS l, {allowed}
    WHERE NOT EXISTS (SELECT FROM {schema}.tally WHERE tally.lane = l.n)
      AND NOT EXISTS (SELECT FROM {schema}.ready WHERE ready.lane = l.n)
      AND NOT EXISTS (SELECT FROM {schema}.tasks WHERE tasks.lane = l.n)
    LIMIT %(step)s FOR UPDATE OF l SKIP LOCKED)

-- name: remove_groups
-- The foreign key of `lanes` keeps a group to which another transaction adds a lane after this statement began.
DELETE FROM {schema}.lane_groups WHERE n IN (
    SELECT g.n FROM {schema}.lane_groups AS g, {allowed}
    WHERE NOT EXISTS (SELECT FROM {schema}.lanes WHERE lanes.lane_group = g.n)
      AND NOT EXISTS (SELECT FROM {schema}.ready WHERE ready.lane_group = g.n)
    LIMIT %(step)s FOR UPDATE OF g SKIP LOCKED)
