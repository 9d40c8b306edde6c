-- Every statement of the tables, by name. A list of numbers or ids is passed as one JSON text, and results are returned
-- in one row: the driver releases the GIL at every step, and reacquiring it may take milliseconds while other threads
-- run. So a batch must take a few steps, and not one step per task.
-- Times are parameters; SQLite's own clock is not used.
-- Only a file has the table `unindexed`.

-- name: last
SELECT max((SELECT coalesce(max(n), 0) FROM tasks), (SELECT coalesce(max(last), 0) FROM segments)), (SELECT max(n) FROM lanes),
       (SELECT coalesce(max(changed), 0) FROM lanes), (SELECT count FROM lane_removals), EXISTS (SELECT 1 FROM segments)

-- name: insert
INSERT INTO tasks (n, id, lane, status, ready, available_at, rank, version, created_at, updated_at, priority, timeout,
                   max_retries, retry, idempotency_key, trace_id, run_at, payload, batch)
VALUES (?, ?, ?, 'pending', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING

-- name: add_directly
-- Adds one task without an idempotency key to an existing lane, as a whole transaction. Neither indexes nor counts include the task until
-- `move_unindexed`: each of them costs a page in the log, a tenth of the time of a submit. Fails with a constraint error, and adds
-- nothing, if the id exists, or if there is no lane: also if the tables have a newer version.
INSERT INTO unindexed (n, id, available_at, rank, created_at, priority, timeout, max_retries, retry, trace_id, run_at, payload, batch, lane)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?16,
        (SELECT n FROM lanes WHERE queue = ?13 AND type = ?14 AND needs = ?15 AND priority = ?6
         AND NOT EXISTS (SELECT 1 FROM formats WHERE number > {version})
         AND NOT EXISTS (SELECT 1 FROM tasks WHERE id = ?2)))

-- name: move_unindexed
-- A missing value of a damaged row becomes a text, so that the task is found and set aside.
INSERT INTO tasks (id, lane, status, ready, available_at, rank, version, created_at, updated_at, priority, timeout, max_retries, retry,
                   trace_id, run_at, payload, batch)
SELECT coalesce(id, n), coalesce(lane, ''), 'pending', coalesce(available_at <= created_at, 1), coalesce(available_at, ''),
       coalesce(rank, ''), 1, coalesce(created_at, ''), coalesce(created_at, ''), coalesce(priority, ''), coalesce(timeout, ''),
       coalesce(max_retries, ''), retry, trace_id, run_at, coalesce(payload, ''), batch
FROM unindexed WHERE true ORDER BY created_at, n
ON CONFLICT (id) DO NOTHING

-- name: record_moved
-- The first event of a task is stored only if `history` cannot derive it from the task.
INSERT INTO events (n, version, at, status, attempt, failures, worker_id, error, available_at)
SELECT n, version, updated_at, status, attempt, failures, worker_id, error, available_at FROM tasks
WHERE n > ? AND available_at <> coalesce(run_at, created_at)

-- name: moved_lanes
SELECT json_group_array(json_array(lane, number)) FROM (SELECT lane, count(*) AS number FROM tasks WHERE n > ? GROUP BY lane)

-- name: due_unindexed_lanes
SELECT json_group_array(DISTINCT lane) FROM unindexed WHERE available_at <= max(?, created_at)

-- name: coming_unindexed
SELECT min(available_at) FROM unindexed WHERE available_at > max(?, created_at)

-- name: counts_unindexed
SELECT queue, type, 'pending', lanes.priority, count(*)
FROM unindexed JOIN lanes ON lanes.n = unindexed.lane WHERE ?1 IS NULL OR batch = ?1
GROUP BY queue, type, lanes.priority

-- name: wrong_unindexed
-- For `qo doctor`: the number of such tasks that no writer can move, or whose lane does not exist.
SELECT count(*) FROM unindexed WHERE id IN (SELECT id FROM tasks) OR lane NOT IN (SELECT n FROM lanes)

-- name: inserted_ids
SELECT json_group_array(id) FROM tasks WHERE n BETWEEN ? AND ?

-- name: followers
SELECT json_group_array(json_array(first, last)) FROM followers WHERE first IN (SELECT value FROM json_each(?))

-- name: follow
INSERT INTO followers (first, last) VALUES (?, ?) ON CONFLICT (first) DO UPDATE SET last = excluded.last

-- name: unfollow
DELETE FROM followers WHERE last IN (SELECT value FROM json_each(?))

-- name: record_new
INSERT INTO events (n, version, at, status, attempt, failures, worker_id, error, available_at)
SELECT n, version, updated_at, status, attempt, failures, worker_id, error, available_at FROM tasks WHERE n BETWEEN ? AND ?

-- name: record
INSERT INTO events (n, version, at, status, attempt, failures, worker_id, error, available_at)
SELECT n, version, updated_at, status, attempt, failures, worker_id, error, available_at FROM tasks
WHERE n IN (SELECT value FROM json_each(?))

-- name: record_with_log
-- The numbers are the keys of one JSON object, and the logs its values: half the additional time of a row of VALUES for each task.
INSERT INTO events (n, version, at, status, attempt, failures, worker_id, error, available_at, log)
SELECT t.n, t.version, t.updated_at, t.status, t.attempt, t.failures, t.worker_id, t.error, t.available_at, j.value
FROM json_each(?) AS j CROSS JOIN tasks AS t ON t.n = CAST(j.key AS INTEGER)

-- name: coming_lanes
SELECT json_group_array(DISTINCT lane)
FROM (SELECT lane FROM tasks INDEXED BY tasks_coming WHERE ready = 0 AND available_at <= ? ORDER BY available_at LIMIT ?)

-- name: stage
UPDATE tasks SET ready = 1
WHERE n IN (SELECT n FROM tasks INDEXED BY tasks_coming WHERE ready = 0 AND available_at <= ? ORDER BY available_at LIMIT ?)

-- name: coming
SELECT min(available_at) FROM tasks INDEXED BY tasks_coming WHERE ready = 0

-- name: changed_heads
-- The first ready task of each lane that has changed since ?1 or is in ?2, or null if the lane has none; the number of the last
-- change; and the number of lane removals.
SELECT json_group_array(json_array(lane, json((
    SELECT json_array(rank, n, max(available_at, created_at))
    FROM tasks INDEXED BY tasks_ready WHERE ready = 1 AND lane = changed.lane ORDER BY rank, n LIMIT 1
)))), (SELECT coalesce(max(changed), 0) FROM lanes), (SELECT count FROM lane_removals)
FROM (SELECT n AS lane FROM lanes INDEXED BY lanes_changed WHERE changed > ?1 UNION SELECT value FROM json_each(?2)) AS changed

-- name: mark_changed
UPDATE lanes SET changed = ?1 WHERE n IN (SELECT value FROM json_each(?2))

-- name: mark_new_heads
-- Marks the lanes in ?2 whose first ready task is new: its number is above ?3. Tasks behind the first do not affect which lanes a
-- claim reads.
UPDATE lanes SET changed = ?1
WHERE n IN (SELECT value FROM json_each(?2))
  AND (SELECT n FROM tasks INDEXED BY tasks_ready WHERE ready = 1 AND lane = lanes.n ORDER BY rank, n LIMIT 1) > ?3

-- name: mark_all_changed
UPDATE lanes SET changed = ?1

-- name: remove_lanes
-- Removes the lanes in ?1 that have no tasks. Damaged tasks are not counted, so no lane is removed while there are any. The lane
-- with the highest number stays, so that numbers are not reused.
DELETE FROM lanes
WHERE n IN (SELECT value FROM json_each(?1)) AND n < (SELECT max(n) FROM lanes)
  AND NOT EXISTS (SELECT 1 FROM tally WHERE lane = lanes.n)
  AND NOT EXISTS (SELECT 1 FROM notes WHERE name > 'quarantine/tasks/' AND name < 'quarantine/tasks0')

-- name: count_lane_removal
UPDATE lane_removals SET count = count + 1

-- name: remove_counts
DELETE FROM tally WHERE lane IN (SELECT value FROM json_each(?1)) AND count = 0

-- name: first
-- The first tasks of each lane with their effective ranks (model/ranking.py). Only a promoted task is read from the table; for the
-- others the index is enough.
SELECT json_group_array(json_array(value, json((
    SELECT json_group_array(json_array(effective, rank, n))
    FROM (SELECT CASE WHEN rank <= ?3 THEN min(rank, max(available_at, created_at)) ELSE rank END AS effective, rank, n
          FROM tasks INDEXED BY tasks_ready WHERE ready = 1 AND lane = lanes.value ORDER BY tasks.rank, n LIMIT ?2)
))))
FROM json_each(?1) AS lanes

-- name: candidates
-- The first ?2 ready tasks of each lane in ?1, and the first ?4 tasks that are due at ?3 and not ready yet, for a claim from several
-- tables.
SELECT json_group_array(json((
    SELECT json_group_array(json_array(id, rank, due_at, created_at, lane))
    FROM (SELECT id, rank, max(available_at, created_at) AS due_at, created_at, lane
          FROM tasks INDEXED BY tasks_ready WHERE ready = 1 AND lane = lanes.value ORDER BY tasks.rank, n LIMIT ?2)
))), (
    SELECT json_group_array(json_array(id, rank, due_at, created_at, lane))
    FROM (SELECT id, rank, max(available_at, created_at) AS due_at, created_at, lane
          FROM tasks INDEXED BY tasks_coming WHERE ready = 0 AND available_at <= ?3 ORDER BY available_at LIMIT ?4)
)
FROM json_each(?1) AS lanes

-- name: coming_in_lanes
-- The first ?3 tasks of the lanes in ?1 that are due at ?2 and not ready yet.
SELECT json_group_array(json_array(id, rank, due_at, created_at, lane))
FROM (SELECT id, rank, max(available_at, created_at) AS due_at, created_at, lane
      FROM tasks INDEXED BY tasks_coming
      WHERE ready = 0 AND available_at <= ?2 AND lane IN (SELECT value FROM json_each(?1)) ORDER BY available_at LIMIT ?3)

-- name: claim
UPDATE tasks
SET status = 'running', ready = NULL, attempt = attempt + 1, lease_id = ?1, worker_id = ?2, lease_expires_at = ?3,
    started_at = ?6, updated_at = ?4, version = version + 1, progress = NULL, progress_text = NULL
WHERE n IN (SELECT value FROM json_each(?5))

-- name: claim_each
UPDATE tasks
SET status = 'running', ready = NULL, attempt = attempt + 1, lease_id = v.column2, worker_id = v.column3,
    lease_expires_at = v.column4, started_at = v.column6, updated_at = v.column5, version = version + 1,
    progress = NULL, progress_text = NULL
FROM (VALUES (?, ?, ?, ?, ?, ?)) AS v
WHERE tasks.n = v.column1

-- name: held_under
SELECT json_group_array(n) FROM tasks INDEXED BY tasks_leased WHERE status = 'running' AND lease_id = ?

-- name: change
-- A result that a change does not replace is not read.
UPDATE tasks
SET status = v.column2, ready = v.column3, available_at = v.column4, rank = v.column5, failures = v.column6,
    timeout = v.column7, error = v.column8, worker_id = v.column9, lease_expires_at = v.column10,
    started_at = v.column11, completed_at = v.column12, updated_at = v.column13, version = v.column14,
    result = CASE WHEN v.column2 <> 'pending' THEN coalesce(v.column15, tasks.result) END,
    failure_kind = CASE WHEN v.column2 <> 'completed' THEN coalesce(v.column16, tasks.failure_kind) END,
    archived_from = CASE WHEN v.column2 = 'archived' THEN tasks.status END,
    progress = coalesce(v.column17, tasks.progress),
    progress_text = CASE WHEN v.column17 IS NULL THEN tasks.progress_text ELSE v.column18 END
FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)) AS v
WHERE tasks.n = v.column1

-- name: move
-- Moves a task to the lane of another priority or group.
UPDATE tasks SET lane = ?2, priority = ?3 WHERE n = ?1

-- name: set_aside
UPDATE tasks SET status = 'damaged', ready = NULL WHERE n IN (SELECT value FROM json_each(?))

-- name: set_aside_among
SELECT id, n FROM tasks WHERE id IN (SELECT value FROM json_each(?)) AND status = 'damaged'

-- name: recount
INSERT INTO tally (lane, status, count)
SELECT lane, status, sum(count)
FROM (SELECT lane, status, count(*) AS count FROM tasks WHERE status <> 'damaged' GROUP BY lane, status
      UNION ALL SELECT lane, status, count FROM cold_counts)
GROUP BY lane, status

-- name: delete
DELETE FROM tasks WHERE n IN (SELECT value FROM json_each(?))

-- name: delete_events
DELETE FROM events WHERE n IN (SELECT value FROM json_each(?))

-- name: count_up
INSERT INTO tally (lane, status, count) VALUES (?, ?, ?)
ON CONFLICT (lane, status) DO UPDATE SET count = count + excluded.count

-- name: counts
SELECT queue, type, status, priority, sum(count)
FROM tally JOIN lanes ON lanes.n = tally.lane GROUP BY queue, type, status, priority

-- name: some_coming
-- The number of staged tasks that are not due, up to a limit.
SELECT count(*) FROM (SELECT 1 FROM tasks INDEXED BY tasks_coming WHERE ready = 0 LIMIT ?)

-- name: counts_of_batch
SELECT queue, type, status, lanes.priority, sum(count)
FROM (SELECT lane, status, 1 AS count FROM tasks INDEXED BY tasks_batched WHERE batch = ?1
      UNION ALL SELECT lane, status, count FROM cold_counts INDEXED BY cold_counts_batched WHERE batch = ?1 AND batch <> ''
     ) AS batched JOIN lanes ON lanes.n = batched.lane
GROUP BY queue, type, status, lanes.priority

-- name: history
-- The first event of a task that was added directly may be missing. Its values are in the task, where no change replaces them; before
-- the first change, `available_at` is one of them.
SELECT version, at, status, attempt, failures, worker_id, error, available_at, log
FROM events WHERE n = (SELECT n FROM tasks WHERE id = ?1)
UNION ALL
SELECT 1, created_at, 'pending', 0, 0, NULL, NULL, CASE version WHEN 1 THEN available_at ELSE coalesce(run_at, created_at) END, NULL
FROM tasks WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM events WHERE n = tasks.n AND version = 1)
ORDER BY version

-- name: write_note
INSERT INTO notes (name, data, version) VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET data = excluded.data, version = excluded.version

-- name: notes
SELECT name, CAST(data AS BLOB), version FROM notes WHERE name >= ?1 AND name < ?1 || char(0x10FFFF) ORDER BY name

-- name: wrong_counts
-- For `qo doctor`: the number of counts that do not agree with the tasks. A file of version 10 has tasks with `ready` 2, which are not
-- counted.
SELECT count(*)
FROM (SELECT lane, status, count(*) AS count FROM tasks WHERE status <> 'damaged' AND ready IS NOT 2 GROUP BY lane, status) AS actual
FULL JOIN (SELECT lane, status, count FROM tally WHERE count) AS recorded USING (lane, status)
WHERE actual.count IS NOT recorded.count

-- name: wrong_counts_of_log
-- The same for the tables of a log, whose counts include the tasks of segments.
SELECT count(*)
FROM (SELECT lane, status, sum(count) AS count
      FROM (SELECT lane, status, count(*) AS count FROM tasks WHERE status <> 'damaged' GROUP BY lane, status
            UNION ALL SELECT lane, status, count FROM cold_counts)
      GROUP BY lane, status) AS actual
FULL JOIN (SELECT lane, status, count FROM tally WHERE count) AS recorded USING (lane, status)
WHERE actual.count IS NOT recorded.count

-- name: wrong_states
-- For `qo doctor`: the number of tasks that are missing from their index.
SELECT count(*) FROM tasks
WHERE status <> 'damaged'
  AND ((status = 'pending') <> (ready IS NOT NULL) OR (status = 'running') <> (lease_expires_at IS NOT NULL)
       OR (status IN ('pending', 'running')) <> (completed_at IS NULL))

-- name: segments_with
-- The segments that may contain ids with these hashes.
SELECT json_group_array(DISTINCT segment) FROM cold_ids WHERE hash IN (SELECT value FROM json_each(?))

-- name: thin_lanes
-- The lanes that have fewer than ?1 ready tasks before their first segment. Segments with objects in ?2 are ignored.
SELECT json_group_array(lane)
FROM (SELECT lane, min(rank) AS rank FROM segments
      WHERE lane IS NOT NULL AND object NOT IN (SELECT value FROM json_each(?2)) GROUP BY lane) AS first
WHERE (SELECT count(*) FROM (SELECT 1 FROM tasks INDEXED BY tasks_ready
                             WHERE ready = 1 AND lane = first.lane AND tasks.rank < first.rank LIMIT ?1)) < ?1

-- name: segments_of_lane
SELECT json_group_array(json_array(n, tasks))
FROM (SELECT n, tasks FROM segments WHERE lane = ?1 AND object NOT IN (SELECT value FROM json_each(?2)) ORDER BY rank, n)

-- name: cold_lanes
SELECT json_group_array(DISTINCT lane) FROM segments WHERE lane IS NOT NULL AND object NOT IN (SELECT value FROM json_each(?1))

-- name: add_segment
INSERT INTO segments (object, tasks, last, oldest, newest, finished_at, lane, rank) VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING n

-- name: remember_ids
INSERT INTO cold_ids (hash, segment) VALUES (?, ?) ON CONFLICT (hash, segment) DO NOTHING

-- name: forget_ids
DELETE FROM cold_ids WHERE segment = ?1 AND hash IN (SELECT value FROM json_each(?2))

-- name: count_cold
INSERT INTO cold_counts (segment, lane, status, batch, count) VALUES (?, ?, ?, ?, ?)

-- name: states
SELECT json_group_array(json_array(n, id, lane, version, status, ready, attempt + failures)) FROM tasks WHERE n IN (SELECT value FROM json_each(?))

-- name: deep_lanes
-- The lanes with more than ?1 pending tasks in the tables, and how many more.
SELECT lane, surplus
FROM (SELECT lane, count - ?1 - (SELECT coalesce(sum(tasks), 0) FROM segments WHERE segments.lane = tally.lane) AS surplus
      FROM tally WHERE status = 'pending')
WHERE surplus > 0

-- name: rank_at
-- The rank of a ready task of a lane that may be moved into a segment, by its place.
SELECT rank FROM tasks INDEXED BY tasks_ready
WHERE ready = 1 AND lane = ?1 AND +attempt = 0 AND +failures = 0 AND idempotency_key IS NULL ORDER BY rank, n LIMIT 1 OFFSET ?2

-- name: deep_tasks
-- The numbers, sizes and ranks of ?3 ready tasks of a lane that never ran, with ranks above ?2. One with an idempotency key is read by
-- every submission with this key. A damaged rank may be a text, and is above all numbers.
SELECT n, {stored_size}, rank
FROM tasks INDEXED BY tasks_ready
WHERE ready = 1 AND lane = ?1 AND rank > ?2 AND rank < 9e999 AND +attempt = 0 AND +failures = 0 AND idempotency_key IS NULL ORDER BY rank, n LIMIT ?3

-- name: old_tasks
-- The same of ?2 finished tasks that have not changed since ?1.
SELECT n, {stored_size}
FROM tasks JOIN (
    SELECT n AS old, created_at AS at FROM tasks
    WHERE completed_at IS NOT NULL AND status IN ('completed', 'failed', 'cancelled', 'archived') AND updated_at < ?1
      AND completed_at < ?1 AND idempotency_key IS NULL ORDER BY created_at LIMIT ?2
) ON n = old ORDER BY at, n

-- name: numbers_by_rank
SELECT json_group_array(n) FROM (SELECT n FROM tasks ORDER BY rank, n)

-- name: counts_of_segment
SELECT lane, status, batch, count FROM cold_counts WHERE segment = ?

-- name: stored_too
SELECT EXISTS (SELECT 1 FROM tasks WHERE n IN (SELECT value FROM json_each(?1)))
    OR EXISTS (SELECT 1 FROM tasks WHERE id IN (SELECT value FROM json_each(?2)))
