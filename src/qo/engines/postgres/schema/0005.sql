-- Which builds of qo may use these tables (docs/formats.md), and a function for events that allows more columns.

ALTER TABLE {schema}.schema_version
    ADD since integer NOT NULL DEFAULT 0,  -- builds that know this version or a later one may use the tables
    ADD qo text NOT NULL DEFAULT '';  -- the version of qo that migrated the tables

-- The events that the columns of a task contain: it became pending, was claimed, finished. Like `trail`, which processes of the
-- version before still call, but with named columns, so that the table of events may get more columns.
CREATE FUNCTION {schema}.own_events(task {schema}.tasks)
RETURNS TABLE (id uuid, version integer, at float8, status text, attempt integer, failures integer, worker_id text, error text,
               available_at float8)
LANGUAGE sql STABLE AS $$
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
