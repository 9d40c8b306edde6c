-- Tasks go out.

-- name: stage
-- Make ready what has become due. In steps: one statement must not gather a million tasks.
WITH due AS MATERIALIZED (
    SELECT coming.ctid AS place, t.id, t.lane, t.rank, t.version, greatest(t.available_at, t.created_at) AS due_at
    FROM {schema}.coming JOIN {schema}.tasks AS t USING (id, version), {allowed}
    WHERE coming.available_at <= %(now)s
    ORDER BY coming.available_at, coming.id LIMIT %(step)s FOR UPDATE OF t SKIP LOCKED
),
void AS MATERIALIZED (
    SELECT coming.ctid AS place FROM {schema}.coming LEFT JOIN {schema}.tasks AS t USING (id, version)
    WHERE coming.available_at <= %(now)s AND t.id IS NULL LIMIT %(step)s
),
gone AS (DELETE FROM {schema}.coming USING (SELECT place FROM due UNION ALL SELECT place FROM void) AS g WHERE ctid = g.place),
moved AS (
    INSERT INTO {schema}.ready (lane, rank, id, version, due_at, lane_group, weight)
    SELECT lane, rank, id, version, due_at, (SELECT lane_group FROM {schema}.lanes WHERE n = due.lane), round(rank - due_at) FROM due
)
SELECT count(*) FROM due

-- name: claiming
-- First how many each lane gives (looking only; the order is that of `in_order` in model/ranking.py), then exactly so many are locked: what others have locked is passed over.
-- Every answer carries when the next task that is not ready becomes due; if that has come already, nothing is claimed
-- and `stage` goes first. The lock is for whoever asks for this claim again while it is still at work.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8) AS now
    FROM (SELECT pg_advisory_xact_lock(hashtextextended(%(lease_id)s, 0)) OFFSET 0) AS alone, {allowed}
),
coming AS MATERIALIZED (SELECT min(available_at) AS at FROM {schema}.coming),

-- name: by_lanes
-- How many each of the open lanes gives.
SELECT n AS lane, most AS size FROM open WHERE (SELECT count(*) FROM open) = 1
    UNION ALL
    SELECT lane, count(*)
    FROM (SELECT lane FROM (
              SELECT *, row_number() OVER (PARTITION BY type ORDER BY reached, rank, id) AS nth
              FROM (SELECT open.n AS lane, open.type, open.most, head.rank, head.id,
                           max(CASE WHEN head.rank <= clock.now THEN coalesce(head.due_at, head.rank) ELSE head.rank END)
                               OVER (PARTITION BY open.n ORDER BY head.rank, head.id) AS reached
                    FROM clock, open, LATERAL (SELECT rank, id, due_at FROM {schema}.ready
                                               WHERE lane = open.n ORDER BY rank, id LIMIT open.most) AS head) AS ranked
          ) AS heads
          WHERE nth <= most ORDER BY reached, rank, id LIMIT %(limit)s::integer) AS first
    WHERE (SELECT count(*) FROM open) > 1
    GROUP BY lane

-- name: taking
first AS MATERIALIZED (
    SELECT head.*
    FROM share, LATERAL (SELECT t.ctid AS task, ready.ctid AS place
                         FROM {schema}.ready JOIN {schema}.tasks AS t USING (id, version) WHERE ready.lane = share.lane
                         ORDER BY ready.rank, ready.id LIMIT share.size FOR UPDATE OF t SKIP LOCKED) AS head
),
gone AS (DELETE FROM {schema}.ready USING (SELECT place FROM first UNION ALL SELECT place FROM void) AS g WHERE ctid = g.place),
claimed AS (
    UPDATE {schema}.tasks AS t
    SET status = 'running', attempt = attempt + 1, lease_id = %(lease_id)s, worker_id = %(worker_id)s,
        lease_expires_at = clock.now + %(lease)s, updated_at = clock.now, version = version + 1,
        started_at = CASE WHEN NOT %(is_prefetch)s THEN clock.now END, claimed = version + 1, claimed_at = clock.now
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
SELECT clock.now, coming.at, exact.yes, {columns} FROM clock CROSS JOIN coming CROSS JOIN exact LEFT JOIN claimed AS t ON true

-- name: claim
-- From the lanes of some types.
{claiming}
open AS MATERIALIZED (
    SELECT lanes.n, lanes.type, least(coalesce(part.most, %(limit)s::integer), %(limit)s::integer) AS most
    FROM (SELECT * FROM {schema}.lanes WHERE type = ANY (%(types)s::text[])
          UNION ALL SELECT * FROM {schema}.lanes WHERE %(types)s::text[] = '{}') AS lanes
         LEFT JOIN unnest(%(part)s::text[], %(most)s::integer[]) AS part (type, most) USING (type), clock, coming
    WHERE (%(queues)s::text[] = '{}' OR queue = ANY (%(queues)s::text[]))
      AND needs <@ %(capabilities)s::text[]
      AND (%(staged)s OR coming.at IS NULL OR coming.at > clock.now)
),
exact AS MATERIALIZED (SELECT true AS yes),
share AS MATERIALIZED (
    {by_lanes}
),
void AS MATERIALIZED (
    SELECT head.place
    FROM open, LATERAL (SELECT ctid AS place, id, version FROM {schema}.ready WHERE lane = open.n ORDER BY rank, id LIMIT 3) AS head
         LEFT JOIN {schema}.tasks AS t USING (id, version)
    WHERE t.id IS NULL
),
{taking}

-- name: claim_any
-- From every type. With more than a few lanes, what is ready is read in the order it goes out, group by group and weight by
-- weight. This is the order of `in_order` unless one of the lanes met mixes tasks of different ageing, so that what comes
-- first is not what its lane gives first. Then nothing is claimed: the answer says that it is not exact, and `claim` goes.
{claiming}
groups AS MATERIALIZED (
    SELECT g.n FROM {schema}.lane_groups AS g, clock, coming
    WHERE (%(queues)s::text[] = '{}' OR g.queue = ANY (%(queues)s::text[]))
      AND g.needs <@ %(capabilities)s::text[]
      AND (%(staged)s OR coming.at IS NULL OR coming.at > clock.now)
),
few AS MATERIALIZED (
    SELECT lane.* FROM groups, LATERAL (SELECT n, type FROM {schema}.lanes WHERE lane_group = groups.n LIMIT 65) AS lane LIMIT 65
),
open AS MATERIALIZED (SELECT n, type, %(limit)s::integer AS most FROM few WHERE (SELECT count(*) FROM few) <= 64),
pair (lane_group, weight) AS (
    SELECT n, (SELECT weight FROM {schema}.ready WHERE lane_group = groups.n ORDER BY weight LIMIT 1)
    FROM groups WHERE (SELECT count(*) FROM few) > 64
    UNION ALL
    SELECT pair.lane_group, (SELECT ready.weight FROM {schema}.ready
                             WHERE ready.lane_group = pair.lane_group AND ready.weight > pair.weight ORDER BY ready.weight LIMIT 1)
    FROM pair WHERE pair.weight IS NOT NULL
),
walked AS MATERIALIZED (
    SELECT head.lane, head.rank, head.id, reached.rank AS reached
    FROM clock, pair, LATERAL (SELECT lane, rank, id, due_at FROM {schema}.ready
                               WHERE lane_group = pair.lane_group AND weight = pair.weight
                               ORDER BY lane_group, weight, rank, id LIMIT %(limit)s::integer) AS head,
         LATERAL (SELECT CASE WHEN head.rank <= clock.now THEN coalesce(head.due_at, head.rank) ELSE head.rank END AS rank) AS reached
    ORDER BY reached.rank, head.rank, head.id
    LIMIT %(limit)s::integer
),
walked_share AS MATERIALIZED (
    SELECT lane, count(*) AS size, (array_agg(id ORDER BY rank DESC, id DESC))[1] AS last, bool_and(is_in_order) AS is_in_order
    FROM (SELECT *, reached >= coalesce(lag(reached) OVER (PARTITION BY lane ORDER BY rank, id), reached) AS is_in_order
          FROM walked) AS w
    GROUP BY lane
),
exact AS MATERIALIZED (
    SELECT coalesce(bool_and(w.is_in_order AND w.last = (SELECT id FROM {schema}.ready WHERE ready.lane = w.lane
                                                         ORDER BY rank, id OFFSET w.size - 1 LIMIT 1)), true) AS yes
    FROM walked_share AS w
),
share AS MATERIALIZED (
    {by_lanes}
    UNION ALL
    SELECT lane, size FROM walked_share WHERE (SELECT yes FROM exact)
),
void AS MATERIALIZED (
    SELECT head.place
    FROM (SELECT n FROM open UNION ALL SELECT lane FROM walked_share WHERE (SELECT yes FROM exact)) AS lanes,
         LATERAL (SELECT ctid AS place, id, version FROM {schema}.ready WHERE lane = lanes.n ORDER BY rank, id LIMIT 3) AS head
         LEFT JOIN {schema}.tasks AS t USING (id, version)
    WHERE t.id IS NULL
),
{taking}

-- name: await_claim
SELECT FROM (SELECT pg_advisory_xact_lock(hashtextextended(%(lease_id)s, 0)) OFFSET 0) AS alone

-- name: held_under
SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8), {columns}
FROM {schema}.leases AS l, LATERAL (SELECT DISTINCT id FROM unnest(l.ids) AS twice (id)) AS held
     JOIN {schema}.tasks AS t USING (id)
WHERE l.lease_id = %(lease_id)s AND t.status = 'running' AND t.lease_id = %(lease_id)s

-- name: claimable
SELECT coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8),
       (SELECT min(available_at) FROM {schema}.coming),
       EXISTS (
           SELECT FROM {schema}.lanes, LATERAL (SELECT FROM {schema}.ready WHERE lane = lanes.n LIMIT 1) AS head
           WHERE (%(queues)s::text[] = '{}' OR queue = ANY (%(queues)s::text[]))
             AND type = ANY (%(types)s::text[])
             AND needs <@ %(capabilities)s::text[])
       OR %(types)s::text[] = '{}' AND EXISTS (
           SELECT FROM {schema}.lane_groups AS g, LATERAL (SELECT FROM {schema}.ready WHERE lane_group = g.n LIMIT 1) AS head
           WHERE (%(queues)s::text[] = '{}' OR queue = ANY (%(queues)s::text[]))
             AND needs <@ %(capabilities)s::text[])
