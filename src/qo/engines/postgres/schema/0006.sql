-- The time since which a ready task waits. Once it has waited long enough, it is claimed before all tasks that came after it.
-- Processes of the version before leave it null; the tasks that they make ready are ordered by rank only.

LOCK TABLE {schema}.tasks, {schema}.ready IN SHARE ROW EXCLUSIVE MODE;

ALTER TABLE {schema}.ready ADD due_at float8;
UPDATE {schema}.ready SET due_at = greatest(tasks.available_at, tasks.created_at)
FROM {schema}.tasks WHERE tasks.id = ready.id AND tasks.version = ready.version;
