-- reset_jobs(queue, lease, ...): jobs whose worker is dead or has left, or whose lease has run out, go back into line, each into its place: at once the first
-- time, after a wait when it happens again. One that this happened to `most_resets` times before fails instead: it may be what
-- kills them. At most `batch` a call, oldest claims first; rows that somebody has locked are left alone.
--   mark     the lowest fence worth looking at
--   absent   workers that were absent at the last look; who still is, is taken for dead
--   worker, known, below, spent   the caller's own claims: see tend_claims
-- One worker at a time does it; the others hear nothing new, but for what they gave back themselves.
-- The first row is about the queue, without an id: the lowest fence that is worth looking at next time, who is absent now, and the
-- highest fence that was drawn so far. The state 'released' stands for jobs of a claim that its worker had not heard of.
CREATE OR REPLACE FUNCTION {{fn:reset_jobs}}(
    queue text, lease interval, most_resets integer, message text, batch integer, mark bigint, absent text[], worker text,
    known bigint[], below bigint, spent bigint[], attempts integer, base interval, most interval, hold boolean, keep boolean)
RETURNS TABLE (id text, state text, age bigint, key text, lowest bigint, missing text[], ceiling bigint) LANGUAGE plpgsql VOLATILE
-- The plan must not change with what the planner thinks of the table just now.
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $mr$
DECLARE
    right_now timestamptz := pg_catalog.clock_timestamp();
    released text[] := ARRAY(SELECT ARRAY[t.id::text, t.state, t.key]
        FROM {{fn:tend_claims}}(queue, worker, known, below, mark, spent, attempts, base, most, hold, keep) AS t);
    turn_is_mine boolean := pg_catalog.pg_try_advisory_xact_lock({{fn:job_lock}}(queue, 'reset'));
    job {{jobs}};
    why text;
    becomes text;
    gone text[];
    empty bigint[];
BEGIN
    lowest := mark;
    missing := absent;
    ceiling := coalesce(pg_catalog.pg_sequence_last_value({{rellit:jobs:generations}}), 0);
    IF turn_is_mine THEN
        missing := ARRAY(SELECT {{fn:absent_workers}}());
        gone := ARRAY(SELECT m FROM unnest(missing) AS m WHERE m = ANY (absent));
        -- A claim that is under way may have a lower fence than those that are seen.
        lowest := greatest(mark, (SELECT pg_catalog.min(c.fence) FROM {{job_claims}} AS c
            WHERE c.queue = $1 AND c.fence >= mark) - 10000);
    END IF;
    RETURN NEXT;
    ceiling := NULL;
    FOR i IN 1 .. coalesce(pg_catalog.array_length(released, 1), 0) LOOP
        id := released[i][1];
        state := CASE released[i][2] WHEN 'queued' THEN 'released' ELSE released[i][2] END;
        age := 0;
        key := released[i][3];
        RETURN NEXT;
    END LOOP;
    IF NOT turn_is_mine THEN
        RETURN;
    END IF;
    FOR job IN
        WITH seen AS MATERIALIZED (
            SELECT c.fence, c.ids, c.claimed_at < right_now - lease AS old, EXISTS (SELECT FROM {{worker_nodes}} AS w
                WHERE w.worker_id::text = pg_catalog.right(c.worker, 36) AND w.state <> 'dead'
                    AND w.worker_id::text <> ALL (gone)) AS alive
            FROM {{job_claims}} AS c WHERE c.queue = $1 AND c.fence >= mark)
        SELECT j.* FROM seen AS s CROSS JOIN LATERAL unnest(s.ids) AS u(id) JOIN {{jobs}} AS j ON j.id = u.id
        WHERE (s.old OR NOT s.alive) AND j.state = 'processing' AND j.lease_generation = s.fence
            AND (NOT s.alive OR j.last_heartbeat_at < right_now - lease)
        ORDER BY j.lease_generation LIMIT batch FOR NO KEY UPDATE OF j SKIP LOCKED
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
                    run_at = CASE WHEN j.num_resets > 0 THEN right_now + {{fn:retry_wait}}(j.num_resets, base, most) ELSE j.run_at END
                WHERE j.id = job.id;
        END IF;
        RETURN NEXT;
    END LOOP;
    -- Claims of which nothing runs any more and that their worker did not remove: it is gone, or was when they ended.
    empty := ARRAY(SELECT c.fence FROM {{job_claims}} AS c
        WHERE c.queue = $1 AND c.fence >= mark AND (c.claimed_at < right_now - lease OR NOT EXISTS (SELECT FROM {{worker_nodes}} AS w
                WHERE w.worker_id::text = pg_catalog.right(c.worker, 36) AND w.state <> 'dead'))
            AND NOT EXISTS (SELECT FROM {{jobs}} AS j
                WHERE j.id = ANY (c.ids) AND j.state = 'processing' AND j.lease_generation = c.fence)
        ORDER BY c.fence LIMIT batch);
    IF empty <> '{}' THEN
        PERFORM {{fn:drop_claims}}(queue, empty);
    END IF;
END
$mr$;
