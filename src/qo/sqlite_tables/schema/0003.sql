-- The time that a producer requested. `available_at` does not keep it, because retries change that.
ALTER TABLE tasks ADD COLUMN run_at REAL;
UPDATE tasks SET run_at = available_at WHERE attempt = 0 AND available_at > created_at;
