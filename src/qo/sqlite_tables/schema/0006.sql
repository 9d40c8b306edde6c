-- A claim reads only the lanes whose first tasks come first. A process caches the first task of each lane, and reads it again only
-- for lanes whose ready tasks have changed. Lanes without tasks are removed.
ALTER TABLE lanes ADD COLUMN changed INTEGER NOT NULL DEFAULT 0;  -- the number of the last transaction that changed its ready tasks
CREATE INDEX lanes_changed ON lanes (changed);

CREATE TABLE lane_removals (count INTEGER NOT NULL);  -- the number of transactions that removed lanes
INSERT INTO lane_removals VALUES (0);
