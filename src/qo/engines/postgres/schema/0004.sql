-- A prefetched task has no `started_at` until its handler starts, so the time of the claim gets its own column.
-- Processes of the version before leave it null; they start tasks when they claim them.

ALTER TABLE {schema}.tasks ADD claimed_at float8;

CREATE OR REPLACE FUNCTION {schema}.trail(task {schema}.tasks) RETURNS SETOF {schema}.events LANGUAGE sql STABLE AS $$
    SELECT task.id, CASE WHEN task.claimed IS NULL THEN task.version ELSE task.claimed - 1 END, task.pended_at, 'pending',
           task.attempt - (task.claimed IS NOT NULL)::integer, task.failures, NULL::text, task.error, task.available_at
    WHERE task.pended_at IS NOT NULL
    UNION ALL
    SELECT task.id, task.claimed, coalesce(task.claimed_at, task.started_at), 'running', task.attempt, task.failures,
           task.worker_id, task.error, task.available_at
    WHERE task.claimed IS NOT NULL
    UNION ALL
    SELECT task.id, task.version, task.updated_at, task.status, task.attempt, task.failures, task.worker_id, task.error,
           task.available_at
    WHERE task.completed_at IS NOT NULL
$$;
