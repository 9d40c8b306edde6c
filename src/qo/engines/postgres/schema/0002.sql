-- A lane has one priority, so that pending tasks are counted by priority without reading them.
-- Lanes keep their numbers for priority 6, the default, so that processes of the version before still use the right lane for it.

LOCK TABLE {schema}.lanes, {schema}.tasks, {schema}.ready, {schema}.tally IN SHARE ROW EXCLUSIVE MODE;

ALTER TABLE {schema}.lanes ADD priority smallint NOT NULL DEFAULT 6;
ALTER TABLE {schema}.lanes DROP CONSTRAINT lanes_queue_type_needs_key;
ALTER TABLE {schema}.lanes ADD CONSTRAINT lanes_by_name UNIQUE (queue, type, needs, priority);

INSERT INTO {schema}.lanes (queue, type, needs, priority)
SELECT DISTINCT lanes.queue, lanes.type, lanes.needs, tasks.priority
FROM {schema}.tasks JOIN {schema}.lanes ON lanes.n = tasks.lane WHERE tasks.priority <> 6;

UPDATE {schema}.tasks SET lane = new.n
FROM {schema}.lanes AS old JOIN {schema}.lanes AS new USING (queue, type, needs)
WHERE tasks.priority <> 6 AND old.n = tasks.lane AND new.priority = tasks.priority;

UPDATE {schema}.ready SET lane = tasks.lane FROM {schema}.tasks WHERE tasks.id = ready.id AND tasks.lane <> ready.lane;

DELETE FROM {schema}.tally;
INSERT INTO {schema}.tally (slot, lane, status, count)
SELECT 0, lane, status, count(*) FROM {schema}.tasks GROUP BY lane, status;
