-- drop_jobs(queue, filter, who, why): dead letters are given up for good: they go to the archive as failed, and a key that one held goes on.
-- Others that do not run are canceled. Filters: find_jobs. Without ids and state, those that failed are meant. Gives: operate_jobs.
CREATE OR REPLACE FUNCTION {{fn:drop_jobs}}(queue text, filter jsonb, who text DEFAULT NULL, why text DEFAULT NULL)
RETURNS TABLE (id bigint, was text, state text, done boolean, note text) LANGUAGE sql VOLATILE AS $mr$
    SELECT * FROM {{fn:operate_jobs}}('drop', queue, filter, who, why, NULL, false, NULL)
$mr$;
