-- Claims.

-- name: stage
-- Makes tasks ready that have become due. Limited, so that one statement does not move a million tasks.
WITH due AS MATERIALIZED (
    SELECT coming.ctid AS source, t.id, t.lane, t.rank, t.created_at, t.version,
           greatest(t.available_at, t.created_at) AS due_at
    FROM {schema}.coming JOIN {schema}.tasks AS t USING (id, version), {allowed}
    WHERE coming.available_at <= %(now)s
    ORDER BY coming.available_at, coming.id LIMIT %(step)s FOR UPDATE OF t SKIP LOCKED
),
outdated AS MATERIALIZED (
    SELECT coming.ctid AS source FROM {schema}.coming LEFT JOIN {schema}.tasks AS t USING (id, version)
    WHERE coming.available_at <= %(now)s AND t.id IS NULL LIMIT %(step)s
),
removed AS (DELETE FROM {schema}.coming USING (SELECT source FROM due UNION ALL SELECT source FROM outdated) AS r WHERE ctid = r.source),
moved AS (
    INSERT INTO {schema}.ready (lane, rank, created_at, id, version, due_at, lane_group, weight)
    SELECT lane, rank, created_at, id, version, due_at, (SELECT lane_group FROM {schema}.lanes WHERE n = due.lane),
           round(rank - due_at)
    FROM due
)
SELECT count(*) FROM due

-- name: claim_start
-- The beginning of `claim` and `claim_any`. They first decide how many tasks each lane gives, without locks, in the order of
-- `in_order` in model/ranking.py. Then they lock that many tasks of each lane, and skip those that other transactions have locked.
-- The first columns of the answer are the time, when the next delayed task becomes due, and whether the order is exact. If a
-- delayed task is due already, nothing is claimed, and the caller runs `stage` first. A repeat of this claim waits for the
-- advisory lock until the first attempt has ended.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8) AS now
    FROM (SELECT pg_advisory_xact_lock(hashtextextended(%(lease_id)s, 0)) OFFSET 0) AS claim_lock, {allowed}
),
coming AS MATERIALIZED (SELECT min(available_at) AS at FROM {schema}.coming),

-- name: lane_shares
-- The number of tasks that each lane of `eligible` gives.
SELECT n AS lane, max_size AS size FROM eligible WHERE (SELECT count(*) FROM eligible) = 1
    UNION ALL
    SELECT lane, count(*)
    FROM (SELECT lane FROM (
              SELECT *, row_number() OVER (PARTITION BY type ORDER BY reached, rank, created_at, id) AS nth
              FROM (SELECT eligible.n AS lane, eligible.type, eligible.max_size, head.rank, head.created_at, head.id,
                           max(CASE WHEN head.rank <= clock.now THEN least(head.due_at, head.rank) ELSE head.rank END)
                               OVER (PARTITION BY eligible.n ORDER BY head.rank, head.created_at, head.id) AS reached
                    FROM clock, eligible, LATERAL (SELECT rank, created_at, id, due_at FROM {schema}.ready
                                                   WHERE lane = eligible.n ORDER BY rank, created_at, id LIMIT eligible.max_size) AS head) AS ranked
          ) AS heads
          WHERE nth <= max_size ORDER BY reached, rank, created_at, id LIMIT %(limit)s::integer) AS first
    WHERE (SELECT count(*) FROM eligible) > 1
    GROUP BY lane

-- name: claim_end
-- The end of `claim` and `claim_any`: claims the first `share` tasks of each lane.
first AS MATERIALIZED (
    SELECT head.*
    FROM share, LATERAL (SELECT t.ctid AS task, ready.ctid AS source
                         FROM {schema}.ready JOIN {schema}.tasks AS t USING (id, version) WHERE ready.lane = share.lane
                         ORDER BY ready.rank, ready.created_at, ready.id LIMIT share.size FOR UPDATE OF t SKIP LOCKED) AS head
),
removed AS (DELETE FROM {schema}.ready USING (SELECT source FROM first UNION ALL SELECT source FROM outdated) AS r WHERE ctid = r.source),
claimed AS (
    UPDATE {schema}.tasks AS t
    SET status = 'running', attempt = attempt + 1, lease_id = %(lease_id)s, worker_id = %(worker_id)s,
        lease_expires_at = clock.now + %(lease)s, updated_at = clock.now, version = version + 1,
        started_at = CASE WHEN NOT %(is_prefetch)s THEN clock.now END, claimed = version + 1, claimed_at = clock.now,
        progress = NULL, progress_text = NULL
    FROM first, clock
    WHERE t.ctid = first.task  -- the row is locked and its version was checked, so it has not moved
    RETURNING t.*
),
leased AS (
    INSERT INTO {schema}.leases AS l (lease_id, expires_at, remaining, ids)
    SELECT %(lease_id)s, clock.now + %(lease)s, count(*), array_agg(id) FROM claimed, clock GROUP BY clock.now
    ON CONFLICT (lease_id) DO UPDATE SET remaining = l.remaining + excluded.remaining, ids = l.ids || excluded.ids
),
settled_leases AS (
    DELETE FROM {schema}.leases WHERE lease_id IN (
        SELECT lease_id FROM {schema}.leases WHERE remaining <= 0 LIMIT 20 FOR UPDATE SKIP LOCKED)
      AND lease_id <> %(lease_id)s
),
counted AS (
    INSERT INTO {schema}.tally AS t (slot, lane, status, count)
    SELECT pg_backend_pid(), lane, side.status, side.sign * number
    FROM (SELECT lane, count(*) AS number FROM claimed GROUP BY lane) AS moved,
         (VALUES ('pending', -1), ('running', 1)) AS side (status, sign)
    WHERE EXISTS (SELECT FROM {schema}.lanes WHERE lanes.n = moved.lane)  -- a damaged task may name none
    ORDER BY lane, status
    ON CONFLICT (slot, lane, status) DO UPDATE SET count = t.count + excluded.count
)
SELECT clock.now, coming.at, exact.yes, {columns} FROM clock CROSS JOIN coming CROSS JOIN exact LEFT JOIN claimed AS t ON true

-- name: takes_needs
-- Whether the worker has the capabilities that a lane needs. The first need is the group of the lane if it begins with a mark
-- (model/group.py).
(needs <@ %(capabilities)s::text[] OR %(takes_groups)s AND left(needs[1], 1) = '!' AND needs[2:] <@ %(capabilities)s::text[])

-- name: is_open
-- Whether the group of a lane, if it has one, is not full.
coalesce(type || ' ' || substr(needs[1], 2), '') <> ALL (%(full_groups)s::text[])

-- name: outdated_heads
outdated AS MATERIALIZED (
    SELECT head.source
    FROM eligible, LATERAL (SELECT ctid AS source, id, version FROM {schema}.ready WHERE lane = eligible.n ORDER BY rank, created_at, id LIMIT 3) AS head
         LEFT JOIN {schema}.tasks AS t USING (id, version)
    WHERE t.id IS NULL
),

-- name: claim
-- Claims from the lanes of the given types, or of all types with per-type limits. `outdated` finds rows of `ready` whose task has
-- another version by now.
{claim_start}
eligible AS MATERIALIZED (
    SELECT lanes.n, lanes.type, least(coalesce(limited.size, %(limit)s::integer), %(limit)s::integer) AS max_size
    FROM (SELECT * FROM {schema}.lanes WHERE type = ANY (%(types)s::text[])
          UNION ALL SELECT * FROM {schema}.lanes WHERE %(types)s::text[] = '{}') AS lanes
         LEFT JOIN unnest(%(limited_types)s::text[], %(type_limits)s::integer[]) AS limited (type, size) USING (type), clock, coming
    WHERE (%(queues)s::text[] = '{}' OR queue = ANY (%(queues)s::text[]))
      AND {takes_needs}
      AND (%(is_staged)s OR coming.at IS NULL OR coming.at > clock.now)
),
exact AS MATERIALIZED (SELECT true AS yes),
share AS MATERIALIZED (
    {lane_shares}
),
{outdated_heads}
{claim_end}

-- name: claim_grouped
-- As `claim`, with limits for groups.
{claim_start}
eligible AS MATERIALIZED (
    SELECT *, least(type_size, group_size) AS max_size
    FROM (SELECT lanes.n, lanes.type, of_lane.group_name, least(coalesce(limited.size, %(limit)s::integer), %(limit)s::integer) AS type_size,
                 CASE WHEN of_lane.group_name IS NULL THEN %(limit)s::integer
                      ELSE least(coalesce(known.size, every.size, %(limit)s::integer), %(limit)s::integer) END AS group_size
          FROM (SELECT * FROM {schema}.lanes WHERE type = ANY (%(types)s::text[])
                UNION ALL SELECT * FROM {schema}.lanes WHERE %(types)s::text[] = '{}') AS lanes
               CROSS JOIN LATERAL (SELECT CASE WHEN left(lanes.needs[1], 1) = '!' THEN substr(lanes.needs[1], 2) END AS group_name) AS of_lane
               LEFT JOIN unnest(%(limited_types)s::text[], %(type_limits)s::integer[]) AS limited (type, size) USING (type)
               LEFT JOIN unnest(%(grouped_types)s::text[], %(per_group_limits)s::integer[]) AS every (type, size) USING (type)
               LEFT JOIN unnest(%(limited_groups)s::text[], %(group_limits)s::integer[]) AS known (name, size)
                   ON known.name = lanes.type || ' ' || of_lane.group_name,
               clock, coming
          WHERE (%(queues)s::text[] = '{}' OR queue = ANY (%(queues)s::text[]))
            AND {takes_needs}
            AND (%(is_staged)s OR coming.at IS NULL OR coming.at > clock.now)) AS lanes
    WHERE type_size > 0 AND group_size > 0
),
exact AS MATERIALIZED (SELECT true AS yes),
share AS MATERIALIZED (
    SELECT n AS lane, max_size AS size FROM eligible WHERE (SELECT count(*) FROM eligible) = 1
    UNION ALL
    SELECT lane, count(*)
    FROM (SELECT lane FROM (
              SELECT *, row_number() OVER (PARTITION BY type ORDER BY reached, rank, created_at, id) AS nth FROM (
                  SELECT *, row_number() OVER (PARTITION BY type, group_name ORDER BY reached, rank, created_at, id) AS nth_of_group
                  FROM (SELECT eligible.n AS lane, eligible.type, eligible.group_name, eligible.type_size, eligible.group_size,
                               head.rank, head.created_at, head.id,
                               max(CASE WHEN head.rank <= clock.now THEN least(head.due_at, head.rank) ELSE head.rank END)
                                   OVER (PARTITION BY eligible.n ORDER BY head.rank, head.created_at, head.id) AS reached
                        FROM clock, eligible, LATERAL (SELECT rank, created_at, id, due_at FROM {schema}.ready
                                                       WHERE lane = eligible.n ORDER BY rank, created_at, id LIMIT eligible.max_size) AS head) AS ranked
              ) AS of_groups
              WHERE nth_of_group <= group_size
          ) AS heads
          WHERE nth <= type_size ORDER BY reached, rank, created_at, id LIMIT %(limit)s::integer) AS first
    WHERE (SELECT count(*) FROM eligible) > 1
    GROUP BY lane
),
{outdated_heads}
{claim_end}

-- name: claim_any
-- Claims from all types. Up to 64 lanes are read one by one. If there are more, `ready` is read by group and weight, each in order,
-- and the results are merged. That is the order of `in_order`, unless a lane contains tasks of different ageing, so that the
-- task that comes first is not the first of its lane. Then nothing is claimed: the answer is not exact, and the caller uses
-- `claim`.
{claim_start}
groups AS MATERIALIZED (
    SELECT g.n FROM {schema}.lane_groups AS g, clock, coming
    WHERE (%(queues)s::text[] = '{}' OR g.queue = ANY (%(queues)s::text[]))
      AND {takes_needs}
      AND (%(is_staged)s OR coming.at IS NULL OR coming.at > clock.now)
),
some_lanes AS MATERIALIZED (
    SELECT lane.* FROM groups, LATERAL (SELECT n, type FROM {schema}.lanes WHERE lane_group = groups.n LIMIT 65) AS lane LIMIT 65
),
eligible AS MATERIALIZED (SELECT n, type, %(limit)s::integer AS max_size FROM some_lanes WHERE (SELECT count(*) FROM some_lanes) <= 64),
group_weight (lane_group, weight) AS (  -- all weights of each group, by index lookups
    SELECT n, (SELECT weight FROM {schema}.ready WHERE lane_group = groups.n ORDER BY weight LIMIT 1)
    FROM groups WHERE (SELECT count(*) FROM some_lanes) > 64
    UNION ALL
    SELECT g.lane_group, (SELECT ready.weight FROM {schema}.ready
                          WHERE ready.lane_group = g.lane_group AND ready.weight > g.weight ORDER BY ready.weight LIMIT 1)
    FROM group_weight AS g WHERE g.weight IS NOT NULL
),
merged AS MATERIALIZED (
    SELECT head.lane, head.rank, head.created_at, head.id, reached.rank AS reached
    FROM clock, group_weight AS g,
         LATERAL (SELECT lane, rank, created_at, id, due_at FROM {schema}.ready
                  WHERE lane_group = g.lane_group AND weight = g.weight
                  ORDER BY lane_group, weight, rank, created_at, id LIMIT %(limit)s::integer) AS head,
         LATERAL (SELECT CASE WHEN head.rank <= clock.now THEN least(head.due_at, head.rank) ELSE head.rank END AS rank) AS reached
    ORDER BY reached.rank, head.rank, head.created_at, head.id
    LIMIT %(limit)s::integer
),
merged_share AS MATERIALIZED (
    SELECT lane, count(*) AS size, (array_agg(id ORDER BY rank DESC, created_at DESC, id DESC))[1] AS last,
           bool_and(is_in_order) AS is_in_order
    FROM (SELECT *, reached >= coalesce(lag(reached) OVER (PARTITION BY lane ORDER BY rank, created_at, id), reached) AS is_in_order
          FROM merged) AS m
    GROUP BY lane
),
exact AS MATERIALIZED (
    SELECT coalesce(bool_and(m.is_in_order AND m.last = (SELECT id FROM {schema}.ready WHERE ready.lane = m.lane
                                                         ORDER BY rank, created_at, id OFFSET m.size - 1 LIMIT 1)), true) AS yes
    FROM merged_share AS m
),
share AS MATERIALIZED (
    {lane_shares}
    UNION ALL
    SELECT lane, size FROM merged_share WHERE (SELECT yes FROM exact)
),
outdated AS MATERIALIZED (
    SELECT head.source
    FROM (SELECT n FROM eligible UNION ALL SELECT lane FROM merged_share WHERE (SELECT yes FROM exact)) AS lanes,
         LATERAL (SELECT ctid AS source, id, version FROM {schema}.ready WHERE lane = lanes.n ORDER BY rank, created_at, id LIMIT 3) AS head
         LEFT JOIN {schema}.tasks AS t USING (id, version)
    WHERE t.id IS NULL
),
{claim_end}

-- name: await_claim
-- Waits until no claim under this lease is running.
SELECT FROM (SELECT pg_advisory_xact_lock(hashtextextended(%(lease_id)s, 0)) OFFSET 0) AS claim_lock

-- name: held_under
-- The tasks that a claim has leased and that are still running under this lease.
SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8), {columns}
FROM {schema}.leases AS l, LATERAL (SELECT DISTINCT id FROM unnest(l.ids) AS leased (id)) AS held
     JOIN {schema}.tasks AS t USING (id)
WHERE l.lease_id = %(lease_id)s AND t.status = 'running' AND t.lease_id = %(lease_id)s

-- name: claimable
-- The time, when the next delayed task becomes due, and whether a task can be claimed now.
SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8),
       (SELECT min(available_at) FROM {schema}.coming),
       EXISTS (
           SELECT FROM {schema}.lanes, LATERAL (SELECT FROM {schema}.ready WHERE lane = lanes.n LIMIT 1) AS head
           WHERE (%(queues)s::text[] = '{}' OR queue = ANY (%(queues)s::text[]))
             AND (type = ANY (%(types)s::text[]) OR %(types)s::text[] = '{}' AND %(full_groups)s::text[] <> '{}')
             AND {takes_needs} AND {is_open})
       OR %(types)s::text[] = '{}' AND %(full_groups)s::text[] = '{}' AND EXISTS (
           SELECT FROM {schema}.lane_groups AS g, LATERAL (SELECT FROM {schema}.ready WHERE lane_group = g.n LIMIT 1) AS head
           WHERE (%(queues)s::text[] = '{}' OR queue = ANY (%(queues)s::text[]))
             AND {takes_needs})
