-- job_conditions(filter): what a filter of jobs (find_jobs) says of a row j, as conditions over $2 (its ids) and $4 (the filter). Only what
-- was asked for is written, so that the planner sees conditions that an index can serve.
--   MR020  a filter that cannot be
CREATE OR REPLACE FUNCTION {{fn:job_conditions}}(filter jsonb)
RETURNS text LANGUAGE plpgsql IMMUTABLE AS $mr$
DECLARE
    odd text;
BEGIN
    IF pg_catalog.jsonb_typeof(filter) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'a filter is a JSON object such as {"state": "failed"}' USING ERRCODE = 'MR020';
    END IF;
    SELECT k INTO odd FROM pg_catalog.jsonb_object_keys(filter) AS k
        WHERE k NOT IN ('ids', 'state', 'key', 'error', 'before', 'after', 'above', 'limit', 'all', 'archived') LIMIT 1;
    IF odd IS NOT NULL THEN
        RAISE EXCEPTION 'a filter of jobs has no "%"', odd USING ERRCODE = 'MR020',
            HINT = 'there are ids, state, key, error, before, after, above, limit, all';
    END IF;
    RETURN CASE WHEN filter ? 'ids' THEN ' AND j.id = ANY ($2)' ELSE '' END
        || CASE WHEN filter ? 'key' THEN ' AND j.partition_key = $4->>''key''' ELSE '' END
        || CASE WHEN filter ? 'error'
            THEN ' AND pg_catalog.strpos(pg_catalog.lower(j.failure_message), pg_catalog.lower($4->>''error'')) > 0' ELSE '' END
        || CASE WHEN filter ? 'before'
            THEN ' AND coalesce(j.finished_at, j.queued_at) < ($4->>''before'')::timestamptz' ELSE '' END
        || CASE WHEN filter ? 'after'
            THEN ' AND coalesce(j.finished_at, j.queued_at) > ($4->>''after'')::timestamptz' ELSE '' END
        || CASE WHEN filter ? 'above' THEN ' AND j.id > ($4->>''above'')::bigint' ELSE '' END;
END
$mr$;
