-- try_lock_keys(queue, keys, patience): as lock_keys, for people: a key whose producer does not commit within `patience` (of the
-- whole call) is left out. Gives the keys that it has. Meant for a few hundred at most, since each is a lock.
CREATE OR REPLACE FUNCTION {{fn:try_lock_keys}}(queue text, keys text[], patience interval)
RETURNS text[] LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    buckets integer := (SELECT s.buckets FROM {{job_settings}} AS s);
    deadline timestamptz := pg_catalog.clock_timestamp() + patience;
    had text[] := '{}';
    k text;
BEGIN
    FOR k IN SELECT DISTINCT u FROM unnest(keys) AS u WHERE u IS NOT NULL ORDER BY 1 LOOP
        LOOP
            IF pg_catalog.pg_try_advisory_xact_lock_shared({{fn:job_lock}}(queue, 'b' || {{fn:key_bucket}}(k, buckets)))
                AND pg_catalog.pg_try_advisory_xact_lock({{fn:job_lock}}(queue, 'k' || k)) THEN
                had := had || k;
                EXIT;
            END IF;
            EXIT WHEN pg_catalog.clock_timestamp() >= deadline;
            PERFORM pg_catalog.pg_sleep(0.005);
        END LOOP;
    END LOOP;
    PERFORM pg_catalog.set_config('millrace.keys', (pg_catalog.cardinality(had)
        + coalesce(nullif(pg_catalog.current_setting('millrace.keys', true), '')::integer, 0))::text, true);
    RETURN had;
END
$mr$;
