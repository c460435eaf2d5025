-- find_jobs(queue, filter, usual): the jobs of the queue that a filter means, by id; those that are over are not among them (the archive
-- has them). Its keys, each of which may be missing:
--   ids       a list; state: a list of states, or one. `usual` are the states when neither is given, NULL for any
--   key       its partition key        error           part of its failure message, in any case
--   before, after   when it ended or, when it has not, when it was queued
--   above     ids greater than this    limit           so many at most
--   all       true: that nothing else is said is meant
--   archived  false: where the archive is looked at too (list_jobs), it is not
-- `newest` gives those with the highest ids first. Without a queue, jobs of all of them.
--   MR020  a filter that cannot be
CREATE OR REPLACE FUNCTION {{fn:find_jobs}}(queue text, filter jsonb, usual text[], newest boolean DEFAULT false)
RETURNS TABLE (id bigint, state text, standing text, key text, ordered boolean) LANGUAGE plpgsql STABLE AS $mr$
DECLARE
    states text[] := {{fn:job_states}}(filter, usual);
BEGIN
    RETURN QUERY EXECUTE 'SELECT j.id, j.state, j.standing, j.partition_key, j.ordered FROM {{jobs}} AS j WHERE true'
        || {{fn:job_conditions}}(filter) || CASE WHEN queue IS NOT NULL THEN ' AND j.queue = $1' ELSE '' END
        -- Written so that the index of what fails, and the claims of what runs, serve.
        || CASE WHEN states = '{failed}' THEN ' AND (j.standing IS NULL OR j.standing = ''held'')'
            WHEN states = '{processing}' THEN ' AND j.state = ''processing'' AND j.id = ANY (ARRAY('
                || 'SELECT u FROM {{job_claims}} AS c, unnest(c.ids) AS u WHERE $1 IS NULL OR c.queue = $1))'
            WHEN states IS NOT NULL THEN ' AND j.state = ANY ($3)' ELSE '' END
        || CASE WHEN newest THEN ' ORDER BY j.id DESC' ELSE ' ORDER BY j.id' END || ' LIMIT ($4->>''limit'')::bigint'
        USING queue, ARRAY(SELECT i::bigint FROM pg_catalog.jsonb_array_elements_text(filter->'ids') AS i), states, filter;
END
$mr$;
