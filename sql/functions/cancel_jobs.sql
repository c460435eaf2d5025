-- cancel_jobs(queue, filter, who, why): jobs that have not begun, or wait for another try, are over: canceled, and in the archive. The worker of
-- one that runs is asked to stop it; it hears with its next heartbeat. Filters: find_jobs. Without ids and state, those that are queued,
-- errored or running are meant. Gives: operate_jobs.
CREATE OR REPLACE FUNCTION {{fn:cancel_jobs}}(queue text, filter jsonb, who text DEFAULT NULL, why text DEFAULT NULL)
RETURNS TABLE (id bigint, was text, state text, done boolean, note text) LANGUAGE sql VOLATILE AS $mr$
    SELECT * FROM {{fn:operate_jobs}}('cancel', queue, filter, who, why, NULL, false, NULL)
$mr$;
