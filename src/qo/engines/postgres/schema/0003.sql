-- The time that the producer requested. Retries change `available_at`.
ALTER TABLE {schema}.tasks ADD run_at float8;
UPDATE {schema}.tasks SET run_at = available_at WHERE status = 'pending' AND attempt = 0 AND available_at > created_at;
