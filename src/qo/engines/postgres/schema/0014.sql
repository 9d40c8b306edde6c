-- The batch of a task, the progress that its handler reported, and the last log lines of each attempt. The log of the last transition
-- is in the row of the task, like the transition itself (`own_events`); `log_version` is the version of that transition. The batch of a
-- task never changes, so updates write nothing to its index.
ALTER TABLE {schema}.tasks ADD batch text COLLATE "C", ADD progress float8, ADD progress_text text, ADD log text,
    ADD log_version integer;
ALTER TABLE {schema}.events ADD log text;
CREATE INDEX tasks_by_batch ON {schema}.tasks (batch, created_at, id) WHERE batch IS NOT NULL;
