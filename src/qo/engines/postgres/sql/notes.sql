-- Notes: small values with compare-and-set writes. {notes} is the table of a name (statements.py). Each write is safe to repeat,
-- because a version identifies its write.

-- name: read_note
SELECT name, data, version FROM {schema}.{notes} WHERE name = %(name)s

-- name: create_note
INSERT INTO {schema}.{notes} AS n (name, data, version) SELECT %(name)s, %(data)s, %(version)s FROM {allowed}
ON CONFLICT (name) DO UPDATE SET data = excluded.data WHERE n.version = excluded.version
RETURNING version

-- name: replace_note
UPDATE {schema}.{notes} SET data = %(data)s, version = %(version)s FROM {allowed}
WHERE name = %(name)s AND version IN (%(expected)s, %(version)s)
RETURNING version

-- name: put_note
INSERT INTO {schema}.{notes} AS n (name, data, version) SELECT %(name)s, %(data)s, %(version)s FROM {allowed}
ON CONFLICT (name) DO UPDATE SET data = excluded.data, version = excluded.version
RETURNING version

-- name: notes
SELECT name, data, version FROM {schema}.{notes} WHERE starts_with(name, %(prefix)s) ORDER BY name

-- name: drop_note
DELETE FROM {schema}.{notes} USING {allowed} WHERE name = %(name)s

-- name: add_audit_note
SELECT {schema}.add_audit_note(%(name)s, %(data)s, %(version)s)
