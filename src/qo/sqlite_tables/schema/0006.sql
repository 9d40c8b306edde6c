-- A claim looks only at lanes that come first: what a process knows of their first tasks it keeps, and reads again only for
-- lanes whose ready tasks have changed since. Lanes without tasks are removed.
ALTER TABLE lanes ADD COLUMN changed INTEGER NOT NULL DEFAULT 0;  -- the number of the last transaction that changed its ready tasks
CREATE INDEX lanes_changed ON lanes (changed);

CREATE TABLE lane_removals (count INTEGER NOT NULL);  -- how often lanes were removed
INSERT INTO lane_removals VALUES (0);
