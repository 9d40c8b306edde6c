-- Why the last attempt failed, and what an archived task was before it was archived.
ALTER TABLE tasks ADD COLUMN failure_kind TEXT;
ALTER TABLE tasks ADD COLUMN archived_from TEXT;
