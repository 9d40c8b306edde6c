-- Separate tables for notes that grant rights or record actions, so that GRANTs can keep roles out of them.
-- Existing notes are not moved, because any role may have written them.

CREATE TABLE {schema}.admin_notes (
    name text COLLATE "C" PRIMARY KEY,
    data bytea NOT NULL,
    version text COLLATE "C" NOT NULL
);
CREATE TABLE {schema}.audit_notes (
    name text COLLATE "C" PRIMARY KEY,
    data bytea NOT NULL,
    version text COLLATE "C" NOT NULL
);

-- Adds a record, also for roles that may neither read nor change records. Safe to repeat.
CREATE FUNCTION {schema}.add_audit_note(name text, data bytea, version text) RETURNS SETOF text
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO {schema}.audit_notes AS n (name, data, version) VALUES ($1, $2, $3)
    ON CONFLICT (name) DO UPDATE SET data = excluded.data WHERE n.version = excluded.version
    RETURNING n.version
$$;
REVOKE ALL ON FUNCTION {schema}.add_audit_note(text, bytea, text) FROM PUBLIC;
