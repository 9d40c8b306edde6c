-- Notes that grant rights or record what was done have tables of their own, so that GRANTs can keep roles out of them.
-- Nothing is moved here: what lies among the other notes may have been written by anyone.

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

-- Adds a record for roles that may neither read nor change any. Repeating it is harmless.
CREATE FUNCTION {schema}.add_audit_note(name text, data bytea, version text) RETURNS SETOF text
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO {schema}.audit_notes AS n (name, data, version) VALUES ($1, $2, $3)
    ON CONFLICT (name) DO UPDATE SET data = excluded.data WHERE n.version = excluded.version
    RETURNING n.version
$$;
REVOKE ALL ON FUNCTION {schema}.add_audit_note(text, bytea, text) FROM PUBLIC;
