-- Every statement that writes calls this with the newest format that the caller knows. It is volatile, so that it sees what is
-- committed now, not when the statement began: a statement that waited for a migration to release its locks must not write.
CREATE FUNCTION {schema}.require_format(known integer) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE newest {schema}.schema_version;
BEGIN
    SELECT * INTO newest FROM {schema}.schema_version ORDER BY version DESC LIMIT 1;
    IF newest.since > known THEN
        RAISE EXCEPTION USING ERRCODE = 'QO001', MESSAGE = format(
            'this queue was written by a newer qo (format %s, since %s); use qo %s or newer', newest.version, newest.since, newest.qo);
    END IF;
    RETURN true;
END $$;
