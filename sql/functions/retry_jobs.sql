-- retry_jobs(queue, filter, who, why): failed jobs (dead letters) come back into line, with all their attempts before them; those that
-- wait for their next try get it now. One that has a key comes behind the jobs of its key that are there; one that kept its key
-- (held) goes on. Filters: find_jobs. Without ids and state, those that failed or errored are meant. Gives: operate_jobs.
CREATE OR REPLACE FUNCTION {{fn:retry_jobs}}(queue text, filter jsonb, who text DEFAULT NULL, why text DEFAULT NULL,
    counters boolean DEFAULT false)
RETURNS TABLE (id bigint, was text, state text, done boolean, note text) LANGUAGE sql VOLATILE AS $mr$
    SELECT * FROM {{fn:operate_jobs}}('retry', queue, filter, who, why, NULL, counters, NULL)
$mr$;
