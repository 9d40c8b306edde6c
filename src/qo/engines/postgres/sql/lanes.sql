-- Lanes, and the counts of tasks by lane and status.

-- name: lanes
SELECT n, lane_group, queue, type, needs, priority FROM {schema}.lanes WHERE n = ANY (%(lane)s::integer[])

-- name: without_lane
-- Those of these tasks whose lane does not exist.
SELECT id::text FROM {schema}.tasks
WHERE id = ANY (%(id)s::uuid[]) AND NOT EXISTS (SELECT FROM {schema}.lanes WHERE lanes.n = tasks.lane)

-- name: make_lanes
-- Returns the lanes with these keys, and adds those that do not exist. Lanes that another transaction adds at the same time may
-- be missing.
WITH key AS MATERIALIZED (
    SELECT queue, type, needs::text[] COLLATE "C" AS needs, priority
    FROM unnest(%(queue)s::text[], %(type)s::text[], %(needs)s::text[], %(priority)s::integer[]) AS new (queue, type, needs, priority), {allowed}
),
old AS MATERIALIZED (SELECT l.* FROM {schema}.lanes AS l JOIN key USING (queue, type, needs, priority)),
new AS MATERIALIZED (SELECT queue, type, needs, priority FROM key EXCEPT SELECT queue, type, needs, priority FROM old),
made_groups AS (
    INSERT INTO {schema}.lane_groups (queue, needs) SELECT DISTINCT queue, needs FROM new ORDER BY queue, needs
    ON CONFLICT (queue, needs) DO UPDATE SET queue = excluded.queue  -- changes nothing, but returns the row
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

-- name: counts
-- Returns lanes by number, because a join of two tables without statistics may take a minute.
SELECT lane, status, sum(count)::bigint, count(*) FROM {schema}.tally GROUP BY lane, status

-- name: fold
-- Adds the counts of all connections to slot 0 and deletes their rows. Rows that another transaction has locked are left.
WITH deleted AS (
    DELETE FROM {schema}.tally WHERE (slot, lane, status) IN (
        SELECT slot, lane, status FROM {schema}.tally WHERE slot <> 0 ORDER BY slot, lane, status FOR UPDATE SKIP LOCKED)
    RETURNING lane, status, count
)
INSERT INTO {schema}.tally AS t (slot, lane, status, count)
SELECT 0, lane, status, sum(count) FROM deleted GROUP BY lane, status
ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count

-- name: fold_empty
-- Four statements remove lanes without tasks; each leaves consistent tables. First, the counts of lanes whose counts add up to
-- zero are moved to slot 0, then zeros are deleted, then lanes, then groups. Rows that another transaction has locked are left to the
-- next sweep.
WITH empty AS MATERIALIZED (
    SELECT lane FROM (SELECT lane, status, sum(count) AS number FROM {schema}.tally GROUP BY lane, status) AS total
    GROUP BY lane HAVING bool_and(number = 0) LIMIT %(step)s
),
deleted AS (
    DELETE FROM {schema}.tally WHERE (slot, lane, status) IN (
        SELECT t.slot, t.lane, t.status FROM {schema}.tally AS t JOIN empty USING (lane), {allowed}
        WHERE t.slot <> 0 ORDER BY t.slot, t.lane, t.status FOR UPDATE OF t SKIP LOCKED)
    RETURNING lane, status, count
)
INSERT INTO {schema}.tally AS t (slot, lane, status, count)
SELECT 0, lane, status, sum(count) FROM deleted GROUP BY lane, status ORDER BY lane, status
ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count

-- name: drop_zeros
DELETE FROM {schema}.tally WHERE (slot, lane, status) IN (
    SELECT t.slot, t.lane, t.status FROM {schema}.tally AS t, {allowed}
    WHERE t.slot = 0 AND t.count = 0 ORDER BY t.slot, t.lane, t.status FOR UPDATE OF t SKIP LOCKED)

-- name: remove_lanes
-- The tasks are checked too: counts may be wrong, and damaged tasks are not counted. The foreign key of `tally` keeps a
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
