-- job_states(filter, usual): the states that a filter means, NULL for any; `usual` when it names neither those nor ids.
--   MR020  a state that no job has
CREATE OR REPLACE FUNCTION {{fn:job_states}}(filter jsonb, usual text[])
RETURNS text[] LANGUAGE plpgsql IMMUTABLE AS $mr$
DECLARE
    states text[];
    odd text;
BEGIN
    IF NOT filter ? 'state' THEN
        RETURN CASE WHEN NOT filter ? 'ids' THEN usual END;
    END IF;
    states := CASE pg_catalog.jsonb_typeof(filter->'state') WHEN 'array'
        THEN ARRAY(SELECT s FROM pg_catalog.jsonb_array_elements_text(filter->'state') AS s) ELSE ARRAY[filter->>'state'] END;
    SELECT s INTO odd FROM unnest(states) AS s
        WHERE s NOT IN ('queued', 'errored', 'processing', 'completed', 'failed', 'canceled') LIMIT 1;
    IF odd IS NOT NULL THEN
        RAISE EXCEPTION 'a job has no state "%"', odd USING ERRCODE = 'MR020';
    END IF;
    RETURN states;
END
$mr$;
