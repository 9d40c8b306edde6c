-- Since when a task that is ready waits: once it has waited for long enough it goes before all that came after it.
-- A process that still runs the version before leaves it null, and what it makes ready keeps to its rank.

LOCK TABLE {schema}.tasks, {schema}.ready IN SHARE ROW EXCLUSIVE MODE;

ALTER TABLE {schema}.ready ADD due_at float8;
UPDATE {schema}.ready SET due_at = greatest(tasks.available_at, tasks.created_at)
FROM {schema}.tasks WHERE tasks.id = ready.id AND tasks.version = ready.version;
