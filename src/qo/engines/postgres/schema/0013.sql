-- Of tasks with the same rank, the one that was submitted earlier goes first.

LOCK TABLE {schema}.tasks, {schema}.ready IN SHARE ROW EXCLUSIVE MODE;

ALTER TABLE {schema}.ready ADD created_at float8;
UPDATE {schema}.ready SET created_at = tasks.created_at
FROM {schema}.tasks WHERE tasks.id = ready.id AND tasks.version = ready.version;
DELETE FROM {schema}.ready WHERE created_at IS NULL;
ALTER TABLE {schema}.ready DROP CONSTRAINT ready_in_order;
DROP INDEX {schema}.ready_by_group;
ALTER TABLE {schema}.ready ALTER created_at SET NOT NULL,
    ADD CONSTRAINT ready_in_order PRIMARY KEY (lane, rank, created_at, id, version);
CREATE INDEX ready_by_group ON {schema}.ready (lane_group, weight, rank, created_at, id);
