-- find_archived(queue, filter, most): the jobs in the archive that a filter means (find_jobs), the highest ids first. There is no index by
-- queue, but jobs end roughly in the order of their ids: it looks through ever wider ranges of those, from the newest on.
--   MR020  a filter that cannot be
CREATE OR REPLACE FUNCTION {{fn:find_archived}}(queue text, filter jsonb, most bigint)
RETURNS SETOF {{jobs_archive}} LANGUAGE plpgsql STABLE AS $mr$
DECLARE
    states text[] := {{fn:job_states}}(filter, NULL);
    ids bigint[] := ARRAY(SELECT i::bigint FROM pg_catalog.jsonb_array_elements_text(filter->'ids') AS i);
    statement text := 'SELECT j.* FROM {{jobs_archive}} AS j WHERE j.id > $5 AND j.id <= $6' || {{fn:job_conditions}}(filter)
        || CASE WHEN queue IS NOT NULL THEN ' AND j.queue = $1' ELSE '' END
        || CASE WHEN states IS NOT NULL THEN ' AND j.state = ANY ($3)' ELSE '' END || ' ORDER BY j.id DESC LIMIT $7';
    top bigint := (SELECT s.last_value FROM {{rel:jobs:turns}} AS s);
    span bigint := 20000;
    got bigint;
    bottom bigint;
BEGIN
    IF NOT states && '{completed,failed,canceled}' OR filter->'archived' = 'false' THEN
        RETURN;
    END IF;
    IF filter ? 'ids' THEN
        top := (SELECT max(i) FROM unnest(ids) AS i);
        span := top - (SELECT min(i) FROM unnest(ids) AS i) + 1;
    END IF;
    WHILE top > 0 AND most > 0 LOOP
        bottom := greatest(top - span, 0);
        RETURN QUERY EXECUTE statement USING queue, ids, states, filter, bottom, top, most;
        GET DIAGNOSTICS got = ROW_COUNT;
        EXIT WHEN filter ? 'ids';
        most := most - got;
        top := bottom;
        span := span * 4;
    END LOOP;
END
$mr$;
