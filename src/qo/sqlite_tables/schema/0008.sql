-- The batch of a task, the progress that its handler reported, and the last log lines of each attempt.
ALTER TABLE tasks ADD COLUMN batch TEXT;
ALTER TABLE tasks ADD COLUMN progress REAL;
ALTER TABLE tasks ADD COLUMN progress_text TEXT;
ALTER TABLE events ADD COLUMN log TEXT;
CREATE INDEX tasks_batched ON tasks (batch, created_at, lane, status) WHERE batch IS NOT NULL;
