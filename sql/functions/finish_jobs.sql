-- finish_jobs(queue, ids, fences, ...): what became of claimed jobs, each under its own fence; those whose claim has moved on are
-- left alone. Gives the place of each that was changed and the state it is in now; a single place 0 stands for all.
--   kinds       complete, error, fail, cancel, requeue, snooze, release; NULL: all are complete
--   messages    of error, fail and cancel; ats, delays (microseconds): when requeue and snooze are due
--   free_only   rows that somebody has locked are told with the state NULL instead of waited for
--   attempts, base, most   how often a job is tried, and the wait before the next try: doubles, with jitter
--   hold        a failed job keeps its key
--   keep        completed and canceled jobs go to the archive; false: they are just deleted
CREATE OR REPLACE FUNCTION {{fn:finish_jobs}}(
    queue text, ids bigint[], fences bigint[], kinds text[], messages text[], ats timestamptz[], delays bigint[],
    free_only boolean, attempts integer, base interval, most interval, hold boolean, keep boolean)
RETURNS TABLE (n integer, state text) LANGUAGE plpgsql VOLATILE
-- The plan must not change with what the planner thinks of the table just now.
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off AS $mr$
DECLARE
    right_now timestamptz := pg_catalog.clock_timestamp();
    given record;
    done bigint[];
    under bigint[];
BEGIN
    IF kinds IS NULL AND NOT free_only THEN
        -- By the ids, in their order, as heartbeats take their locks; each beside its own fence.
        IF keep THEN
            WITH gone AS (
                DELETE FROM {{jobs}} AS j USING unnest(ids, fences) AS g(id, fence)
                WHERE j.id = ANY (ids) AND j.id = g.id AND j.lease_generation = g.fence AND j.state = 'processing'
                RETURNING j.id, j.queue, j.priority, j.partition_key, j.partition_bucket, j.payload, j.metadata, j.idempotency_key,
                    j.queued_at, j.run_at, j.num_failures, j.num_resets, j.errors, j.started_at, j.worker_hostname,
                    j.lease_generation, j.execution_logs),
            kept AS (
                INSERT INTO {{jobs_archive}} (id, queue, state, priority, partition_key, partition_bucket, payload, metadata,
                    idempotency_key, queued_at, run_at, num_failures, num_resets, failure_message, errors, started_at,
                    finished_at, worker_hostname, lease_generation, execution_logs)
                SELECT o.id, o.queue, 'completed', o.priority, o.partition_key, o.partition_bucket, o.payload, o.metadata,
                    o.idempotency_key, o.queued_at, o.run_at, o.num_failures, o.num_resets, NULL, o.errors, o.started_at,
                    right_now, o.worker_hostname, o.lease_generation, o.execution_logs
                FROM gone AS o)
            SELECT pg_catalog.array_agg(o.id), pg_catalog.array_agg(o.lease_generation) INTO done, under FROM gone AS o;
        ELSE
            WITH gone AS (
                DELETE FROM {{jobs}} AS j USING unnest(ids, fences) AS g(id, fence)
                WHERE j.id = ANY (ids) AND j.id = g.id AND j.lease_generation = g.fence AND j.state = 'processing'
                RETURNING g.id, g.fence)
            SELECT pg_catalog.array_agg(o.id), pg_catalog.array_agg(o.fence) INTO done, under FROM gone AS o;
        END IF;
        IF pg_catalog.cardinality(done) = pg_catalog.cardinality(ids) THEN
            n := 0;
            state := 'completed';
            RETURN NEXT;
        ELSE
            RETURN QUERY SELECT g.n::integer, 'completed' FROM unnest(ids, fences) WITH ORDINALITY AS g(id, fence, n)
                JOIN unnest(done, under) AS d(id, fence) ON d.id = g.id AND d.fence = g.fence;
        END IF;
        RETURN;
    END IF;
    -- In the ids' order, as heartbeats take their locks.
    FOR given IN
        SELECT * FROM ROWS FROM (unnest(ids), unnest(fences), unnest(kinds), unnest(messages), unnest(ats), unnest(delays))
            WITH ORDINALITY AS g(id, fence, kind, message, due, delay, n) ORDER BY g.id
    LOOP
        n := given.n;
        state := {{fn:finish_job}}(given.id, given.fence, coalesce(given.kind, 'complete'), given.message,
            coalesce(given.due, right_now + given.delay * interval '1 microsecond'), free_only, attempts, base, most, hold, keep);
        IF state IS DISTINCT FROM 'late' THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END
$mr$;
