-- reset_jobs(queue, lease, ...): jobs whose worker is dead or has left, or whose lease has run out, go back into line: at once the first
-- time, after a wait when it happens again. One that this happened to `most_resets` times before fails instead: it may be what
-- kills them. At most `batch` a call, oldest claims first; rows that somebody has locked are left alone.
--   mark     the lowest fence worth looking at
--   absent   workers that were absent at the last look; who still is, is taken for dead
-- One worker at a time does it; the others hear nothing new.
-- The first row is about the queue, without an id: the lowest fence that is worth looking at next time, and who is absent now.
CREATE OR REPLACE FUNCTION {{fn:reset_jobs}}(
    queue text, lease interval, most_resets integer, message text, batch integer, mark bigint, absent text[], base interval,
    most interval, hold boolean, keep boolean)
RETURNS TABLE (id text, state text, age bigint, key text, lowest bigint, missing text[]) LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    right_now timestamptz := pg_catalog.clock_timestamp();
    job {{jobs}};
    why text;
    becomes text;
    gone text[];
BEGIN
    lowest := mark;
    missing := absent;
    IF NOT pg_catalog.pg_try_advisory_xact_lock({{fn:job_lock}}(queue, 'reset')) THEN
        RETURN NEXT;
        RETURN;
    END IF;
    missing := ARRAY(SELECT {{fn:absent_workers}}());
    gone := ARRAY(SELECT m FROM unnest(missing) AS m WHERE m = ANY (absent));
    -- A claim that is under way may have a lower fence than what is seen running.
    lowest := greatest(mark, (SELECT pg_catalog.min(j.lease_generation) FROM {{jobs}} AS j
        WHERE j.standing = 'running' AND j.lease_generation >= mark) - 100000);
    RETURN NEXT;
    FOR job IN
        SELECT * FROM {{jobs}} AS j WHERE j.standing = 'running' AND j.lease_generation >= mark AND j.queue = $1
            AND (j.last_heartbeat_at < right_now - lease
                OR NOT EXISTS (SELECT FROM {{worker_nodes}} AS w
                    WHERE w.worker_id::text = pg_catalog.right(j.worker_hostname, 36) AND w.state <> 'dead'
                        AND w.worker_id::text <> ALL (gone)))
        ORDER BY j.lease_generation LIMIT batch FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        id := job.id::text;
        age := (extract(epoch FROM right_now - job.last_heartbeat_at) * 1000000)::bigint;
        key := CASE WHEN job.ordered THEN job.partition_key END;
        becomes := CASE WHEN job.cancel THEN 'canceled' WHEN job.num_resets >= most_resets THEN 'failed' ELSE 'queued' END;
        state := becomes;
        IF becomes = 'canceled' THEN
            job.state := becomes;
            job.finished_at := right_now;
            IF keep THEN
                PERFORM {{fn:archive_job}}(job);
            END IF;
            DELETE FROM {{jobs}} AS j WHERE j.id = job.id;
        ELSE
            why := CASE WHEN becomes = 'failed' THEN message ELSE 'its worker died or stopped answering' END;
            UPDATE {{jobs}} AS j SET state = becomes, num_resets = j.num_resets + 1, started_at = NULL,
                    failure_message = CASE WHEN becomes = 'failed' THEN message END,
                    errors = {{fn:note_error}}(j.errors, j.num_failures + j.num_resets + 1, why, j.worker_hostname),
                    finished_at = CASE WHEN becomes = 'failed' THEN right_now END,
                    standing = CASE WHEN becomes = 'failed' THEN CASE WHEN hold AND j.ordered THEN 'held' END
                        WHEN j.num_resets > 0 THEN 'waiting' ELSE 'ready' END,
                    turn = CASE WHEN j.num_resets > 0 THEN j.turn ELSE pg_catalog.nextval({{rellit:jobs:turns}}) END,
                    run_at = CASE WHEN j.num_resets > 0 THEN right_now + {{fn:retry_wait}}(j.num_resets, base, most) ELSE j.run_at END
                WHERE j.id = job.id;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$mr$;
