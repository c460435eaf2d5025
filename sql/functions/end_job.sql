-- end_job(job, becomes, why): a job that does not run is over by somebody's decision: it goes to the archive. Its key is for the caller to
-- promote.
CREATE OR REPLACE FUNCTION {{fn:end_job}}(job {{jobs}}, becomes text, why text)
RETURNS void LANGUAGE plpgsql VOLATILE AS $mr$
BEGIN
    job.state := becomes;
    -- Kept for as long as what ended today: it may have failed long ago.
    job.finished_at := pg_catalog.clock_timestamp();
    IF becomes = 'canceled' THEN
        job.failure_message := coalesce(why, job.failure_message);
    END IF;
    PERFORM {{fn:archive_job}}(job);
    DELETE FROM {{jobs}} AS j WHERE j.id = job.id;
END
$mr$;
