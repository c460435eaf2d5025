-- take_jobs(...): the first jobs in line, locked for the caller's transaction and otherwise left as they are: when it rolls back nothing
-- has happened. finish_taken() says in the same transaction what became of them. As claim_jobs otherwise; the fence is the
-- turn, which nobody can change meanwhile.
CREATE OR REPLACE FUNCTION {{fn:take_jobs}}(
    queue text, most integer, marks bigint[], whole boolean, owned integer[], span integer, patience interval)
RETURNS TABLE (job text, fence bigint, beyond boolean, next_marks text, next_floor bigint, id bigint, job_queue text, payload jsonb,
    key text, priority smallint, attempt integer, max_attempts integer, queued_at timestamptz, run_at timestamptz,
    metadata jsonb, idempotency_key text, timeout_ms bigint, ordered boolean)
LANGUAGE plpgsql VOLATILE
-- The plan must not change with what the planner thinks of the table just now.
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $mr$
DECLARE
    picked record;
    places tid[];
    first bigint;
    sorted boolean;
    reached text;
BEGIN
    IF EXISTS (SELECT FROM {{queue_controls}} AS c WHERE c.queue = $1 AND c.paused) THEN
        RETURN;
    END IF;
    PERFORM {{fn:promote_due}}(queue, greatest(500, 2 * most));
    SELECT * INTO picked FROM {{fn:pick_jobs}}(queue, most, CASE WHEN NOT whole THEN marks END, owned, span, patience);
    IF picked.places IS NULL THEN
        RETURN;
    END IF;
    reached := {{fn:next_marks}}(marks, whole AND pg_catalog.cardinality(picked.places) >= most, picked.levels, picked.turns)::text;
    -- They come as they lie in the table, which is nearly how they stand in line. Only where priorities differ it is worth sorting.
    sorted := picked.levels[1] <> picked.levels[pg_catalog.cardinality(picked.levels)];
    first := picked.turns[1];
    places := picked.places;
    IF NOT sorted THEN
        RETURN QUERY SELECT c.id::text, c.turn, true, CASE WHEN c.turn = first THEN reached END, 0::bigint, c.id, c.queue, c.payload,
                c.partition_key, c.priority, c.num_failures + c.num_resets + 1, c.max_attempts, c.queued_at, c.run_at, c.metadata,
                c.idempotency_key, CASE WHEN c.timeout IS NOT NULL THEN (extract(epoch FROM c.timeout) * 1000)::bigint END, c.ordered
            FROM {{jobs}} AS c WHERE c.ctid = ANY (places);
        RETURN;
    END IF;
    RETURN QUERY SELECT c.id::text, c.turn, true, CASE WHEN c.turn = first THEN reached END, 0::bigint, c.id, c.queue, c.payload,
            c.partition_key, c.priority, c.num_failures + c.num_resets + 1, c.max_attempts, c.queued_at, c.run_at, c.metadata,
            c.idempotency_key, CASE WHEN c.timeout IS NOT NULL THEN (extract(epoch FROM c.timeout) * 1000)::bigint END, c.ordered
        FROM {{jobs}} AS c WHERE c.ctid = ANY (places) ORDER BY c.priority, c.turn;
END
$mr$;
