-- Lanes without tasks are removed. A producer may still hold the number of a removed lane, so each connection's count of a lane
-- refers to the lane: Postgres refuses a count for a lane that is gone, and with it the task. The reference is checked when a
-- connection first counts in a lane, not for each task. The lane of a task never changes, so updates of a task write nothing to
-- the index by lane.

LOCK TABLE {schema}.lane_groups, {schema}.lanes, {schema}.tasks, {schema}.tally IN SHARE ROW EXCLUSIVE MODE;

CREATE INDEX tasks_by_lane ON {schema}.tasks (lane);
CREATE INDEX tally_by_lane ON {schema}.tally (lane);
ALTER TABLE {schema}.tally ADD CONSTRAINT tally_of_lane FOREIGN KEY (lane) REFERENCES {schema}.lanes (n);
ALTER TABLE {schema}.lanes ADD CONSTRAINT lanes_of_group FOREIGN KEY (lane_group) REFERENCES {schema}.lane_groups (n);
