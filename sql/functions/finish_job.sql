-- finish_job(...): one outcome; see finish_jobs. Gives the state the job is in now, 'late' when its claim has moved on, NULL when
-- somebody has its row locked and `free_only` is set.
CREATE OR REPLACE FUNCTION {{fn:finish_job}}(
    job_id bigint, fence bigint, kind text, message text, due timestamptz, free_only boolean, attempts integer, base interval,
    most interval, hold boolean, keep boolean)
RETURNS text LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    right_now timestamptz := pg_catalog.clock_timestamp();
    job {{jobs}};
    becomes text;
BEGIN
    IF free_only THEN
        SELECT * INTO job FROM {{jobs}} AS j
            WHERE j.id = job_id AND j.state = 'processing' AND j.lease_generation = fence FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND AND EXISTS (SELECT FROM {{jobs}} AS j
            WHERE j.id = job_id AND j.state = 'processing' AND j.lease_generation = fence) THEN
            RETURN NULL;
        END IF;
    ELSE
        SELECT * INTO job FROM {{jobs}} AS j
            WHERE j.id = job_id AND j.state = 'processing' AND j.lease_generation = fence FOR NO KEY UPDATE;
    END IF;
    IF job.id IS NULL THEN
        RETURN 'late';
    END IF;
    becomes := CASE kind WHEN 'complete' THEN 'completed' WHEN 'cancel' THEN 'canceled' WHEN 'requeue' THEN 'queued'
        ELSE CASE WHEN job.cancel THEN 'canceled' WHEN kind = 'fail' THEN 'failed'
            WHEN kind = 'error' THEN CASE WHEN job.num_failures + 1 >= coalesce(job.max_attempts, attempts)
                THEN 'failed' ELSE 'errored' END
            ELSE 'queued' END END;
    IF becomes IN ('errored', 'failed', 'canceled') THEN
        job.failure_message := message;
    END IF;
    IF becomes IN ('errored', 'failed') THEN
        job.num_failures := job.num_failures + 1;
        job.errors := {{fn:note_error}}(job.errors, job.num_failures + job.num_resets, message, job.worker_hostname);
    END IF;
    IF becomes IN ('completed', 'canceled') THEN
        job.state := becomes;
        job.finished_at := right_now;
        IF keep THEN
            PERFORM {{fn:archive_job}}(job);
        END IF;
        DELETE FROM {{jobs}} AS j WHERE j.id = job_id;
        RETURN becomes;
    END IF;
    UPDATE {{jobs}} AS j SET state = becomes, failure_message = job.failure_message, num_failures = job.num_failures,
            errors = job.errors, finished_at = CASE WHEN becomes = 'queued' THEN NULL ELSE right_now END,
            started_at = CASE WHEN becomes = 'queued' THEN NULL ELSE j.started_at END,
            queued_at = CASE WHEN kind = 'requeue' THEN right_now ELSE j.queued_at END,
            cancel = j.cancel AND kind <> 'requeue',
            standing = CASE WHEN becomes = 'failed' THEN CASE WHEN hold AND j.ordered THEN 'held' END
                WHEN kind = 'release' THEN 'ready'
                WHEN kind = 'requeue' THEN 'later' ELSE 'waiting' END,
            run_at = CASE WHEN kind IN ('requeue', 'snooze') THEN due
                WHEN becomes = 'errored' THEN right_now + {{fn:retry_wait}}(job.num_failures, base, most) ELSE j.run_at END
        WHERE j.id = job_id;
    RETURN becomes;
END
$mr$;
