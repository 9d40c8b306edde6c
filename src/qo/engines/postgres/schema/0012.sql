-- Why the last attempt failed, and what an archived task was before it was archived.
ALTER TABLE {schema}.tasks ADD failure_kind text COLLATE "C", ADD archived_from text COLLATE "C";
