-- The instant a producer named is kept: retries move `available_at`.
ALTER TABLE tasks ADD COLUMN run_at REAL;
UPDATE tasks SET run_at = available_at WHERE attempt = 0 AND available_at > created_at;
