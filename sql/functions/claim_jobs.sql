-- claim_jobs(...): claims the first jobs in line for a worker, under a new fence. See pick_jobs for marks, owned, span and
-- patience; `whole` looks from the beginning all the same. A paused queue gives none. Jobs whose time has come are put into line first.
--   most_running   of the queue over the whole fleet, exactly: claims of such a queue take turns (who does not get the turn
--                  gets nothing), and count what runs, from the fence `floor` on. NULL: no limit
--   spent          fences of the worker's claims of which no job runs any more: they are removed on the way
-- Never waits for a row. `next_marks` and `next_floor` are where the next claim may start.
CREATE OR REPLACE FUNCTION {{fn:claim_jobs}}(
    queue text, most integer, worker text, marks bigint[], whole boolean, floor bigint, owned integer[], span integer,
    patience interval, most_running integer, spent bigint[] DEFAULT NULL)
RETURNS TABLE (job text, fence bigint, beyond boolean, next_marks text, next_floor bigint, id bigint, job_queue text, payload jsonb,
    key text, priority smallint, attempt integer, max_attempts integer, queued_at timestamptz, run_at timestamptz,
    metadata jsonb, idempotency_key text, timeout_ms bigint, ordered boolean)
LANGUAGE plpgsql VOLATILE
-- The plan must not change with what the planner thinks of the table just now.
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $mr$
DECLARE
    right_now timestamptz := pg_catalog.clock_timestamp();
    picked record;
    places tid[];
    first bigint;
    reached text;
    running integer;
    lowest bigint := coalesce(floor, 0);
    own bigint;
BEGIN
    IF pg_catalog.cardinality(spent) > 0 THEN
        PERFORM {{fn:drop_claims}}(queue, spent);
    END IF;
    IF EXISTS (SELECT FROM {{queue_controls}} AS c WHERE c.queue = $1 AND c.paused) THEN
        RETURN;
    END IF;
    IF most_running IS NOT NULL THEN
        IF NOT pg_catalog.pg_try_advisory_xact_lock({{fn:job_lock}}(queue, 'limit')) THEN
            RETURN;
        END IF;
        SELECT pg_catalog.count(*), coalesce(pg_catalog.min(r.fence), lowest) INTO running, lowest
            FROM (SELECT c.fence FROM {{job_claims}} AS c CROSS JOIN LATERAL unnest(c.ids) AS u(id) JOIN {{jobs}} AS j ON j.id = u.id
                WHERE c.queue = $1 AND c.fence >= lowest AND j.state = 'processing' AND j.lease_generation = c.fence
                ORDER BY c.fence LIMIT most_running) AS r;
        most := least(most, most_running - running);
        IF most <= 0 THEN
            RETURN;
        END IF;
    END IF;
    PERFORM {{fn:promote_due}}(queue, greatest(500, 2 * most));
    SELECT * INTO picked FROM {{fn:pick_jobs}}(queue, most, CASE WHEN NOT whole THEN marks END, owned, span, patience);
    places := picked.places;
    IF places IS NULL THEN
        RETURN;
    END IF;
    first := picked.turns[1];
    reached := {{fn:next_marks}}(marks, whole AND pg_catalog.cardinality(places) >= most, picked.levels, picked.turns)::text;
    own := pg_catalog.nextval({{rellit:jobs:generations}});
    INSERT INTO {{job_claims}} AS c (queue, fence, worker, ids, claimed_at) VALUES ($1, own, $3, picked.ids, right_now);
    -- They come as they lie in the table, which is nearly how they stand in line. Only where priorities differ it is worth sorting.
    IF picked.levels[1] = picked.levels[pg_catalog.cardinality(picked.levels)] THEN
        RETURN QUERY UPDATE {{jobs}} AS j SET state = 'processing', started_at = right_now,
                last_heartbeat_at = right_now, worker_hostname = worker, failure_message = NULL, execution_logs = NULL,
                progress = NULL, progress_text = NULL, lease_generation = own
            WHERE j.ctid = ANY (places)
            RETURNING j.id::text, own, true, CASE WHEN j.turn = first THEN reached END, lowest, j.id,
                j.queue, j.payload, j.partition_key, j.priority, j.num_failures + j.num_resets + 1, j.max_attempts, j.queued_at,
                j.run_at, j.metadata, j.idempotency_key,
                CASE WHEN j.timeout IS NOT NULL THEN (extract(epoch FROM j.timeout) * 1000)::bigint END, j.ordered;
        RETURN;
    END IF;
    RETURN QUERY
        WITH claimed AS (
            UPDATE {{jobs}} AS j SET state = 'processing', started_at = right_now,
                last_heartbeat_at = right_now, worker_hostname = worker, failure_message = NULL, execution_logs = NULL,
                progress = NULL, progress_text = NULL, lease_generation = own
            WHERE j.ctid = ANY (places)
            RETURNING j.id, j.queue, j.payload, j.partition_key, j.priority,
                j.num_failures + j.num_resets + 1 AS attempt, j.max_attempts, j.queued_at, j.run_at, j.metadata, j.idempotency_key,
                j.timeout, j.ordered, j.turn)
        SELECT c.id::text, own, true, CASE WHEN c.turn = first THEN reached END, lowest, c.id, c.queue, c.payload, c.partition_key,
            c.priority, c.attempt, c.max_attempts, c.queued_at, c.run_at, c.metadata, c.idempotency_key,
            CASE WHEN c.timeout IS NOT NULL THEN (extract(epoch FROM c.timeout) * 1000)::bigint END, c.ordered
        FROM claimed AS c ORDER BY c.priority, c.turn;
END
$mr$;
