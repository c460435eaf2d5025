-- finish_taken(queue, ids, ...): what became of the jobs that take_jobs() gave to this transaction; arguments as finish_jobs().
-- Fails when one of them is not there any more, which the locks rule out.
--   MR010  a job is not this transaction's
CREATE OR REPLACE FUNCTION {{fn:finish_taken}}(
    queue text, worker text, ids bigint[], kinds text[], messages text[], ats timestamptz[], delays bigint[],
    attempts integer, base interval, most interval, hold boolean, keep boolean)
RETURNS void LANGUAGE plpgsql VOLATILE
-- The plan must not change with what the planner thinks of the table just now.
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $mr$
DECLARE
    right_now timestamptz := pg_catalog.clock_timestamp();
    done bigint[] := ids;
    given record;
    fence bigint;
    found_rows integer;
BEGIN
    IF kinds IS NOT NULL THEN
        done := ARRAY(SELECT g.id FROM unnest(ids, kinds) AS g(id, kind) WHERE g.kind = 'complete');
        FOR given IN
            SELECT * FROM ROWS FROM (unnest(ids), unnest(kinds), unnest(messages), unnest(ats), unnest(delays))
                AS g(id, kind, message, due, delay) WHERE g.kind NOT IN ('complete', 'release')
        LOOP
            UPDATE {{jobs}} AS j SET state = 'processing', started_at = pg_catalog.now(),
                    worker_hostname = worker, lease_generation = pg_catalog.nextval({{rellit:jobs:generations}})
                WHERE j.id = given.id RETURNING j.lease_generation INTO fence;
            PERFORM {{fn:finish_job}}(given.id, fence, given.kind, given.message,
                coalesce(given.due, right_now + given.delay * interval '1 microsecond'), false, attempts, base, most, hold, keep);
        END LOOP;
    END IF;
    IF keep THEN
        WITH gone AS (
            DELETE FROM {{jobs}} AS j WHERE j.id = ANY (done) RETURNING j.*),
        kept AS (
            INSERT INTO {{jobs_archive}} (id, queue, state, priority, partition_key, partition_bucket, payload, metadata,
                idempotency_key, queued_at, run_at, num_failures, num_resets, failure_message, errors, started_at,
                finished_at, worker_hostname, lease_generation, execution_logs)
            SELECT o.id, o.queue, 'completed', o.priority, o.partition_key, o.partition_bucket, o.payload, o.metadata,
                o.idempotency_key, o.queued_at, o.run_at, o.num_failures, o.num_resets, NULL, o.errors, pg_catalog.now(),
                right_now, worker, o.lease_generation, o.execution_logs
            FROM gone AS o)
        SELECT pg_catalog.count(*) INTO found_rows FROM gone;
    ELSE
        DELETE FROM {{jobs}} AS j WHERE j.id = ANY (done);
        GET DIAGNOSTICS found_rows = ROW_COUNT;
    END IF;
    IF found_rows <> pg_catalog.cardinality(done) THEN
        RAISE EXCEPTION 'a job of queue % went away while it was locked', queue USING ERRCODE = 'MR010';
    END IF;
END
$mr$;
