-- revive_job(job, due, anew, counters): puts a job back that does not run. `due` in the future: it comes into line then; else at once.
--   anew      as if it had just come: of its key's jobs it is the last. Otherwise one that has its key keeps it
--   counters  failures and resets count from 0 again; those of a failed one always do. Its history of errors stays, and so does
--             its fence: whoever ran it before cannot finish it
-- A key that it let go, or waits behind, is for the caller to promote.
CREATE OR REPLACE FUNCTION {{fn:revive_job}}(job {{jobs}}, due timestamptz, anew boolean, counters boolean)
RETURNS void LANGUAGE sql VOLATILE AS $mr$
    UPDATE {{jobs}} AS j SET state = 'queued', started_at = NULL, finished_at = NULL, cancel = false,
        queued_at = CASE WHEN anew THEN pg_catalog.clock_timestamp() ELSE j.queued_at END,
        last_heartbeat_at = pg_catalog.clock_timestamp(), -- since when it is in line
        run_at = CASE WHEN due > pg_catalog.clock_timestamp() THEN due
            WHEN j.run_at > pg_catalog.clock_timestamp() THEN NULL ELSE j.run_at END,
        num_failures = CASE WHEN counters OR job.state = 'failed' THEN 0 ELSE j.num_failures END,
        num_resets = CASE WHEN counters OR job.state = 'failed' THEN 0 ELSE j.num_resets END,
        standing = CASE WHEN due > pg_catalog.clock_timestamp() THEN 'later'
            WHEN j.ordered AND (anew OR job.standing IS NULL) THEN 'blocked' ELSE 'ready' END,
        turn = CASE WHEN due > pg_catalog.clock_timestamp() THEN NULL ELSE pg_catalog.nextval({{rellit:jobs:turns}}) END
    WHERE j.id = job.id
$mr$;
