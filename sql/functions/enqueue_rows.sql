-- enqueue_rows(queue, ...): the jobs of parallel arrays, in their order, in the caller's transaction. `n` counts from 1; `id` is the
-- job's, or with created = false that of the job which had the idempotency key first.
-- A job with a key comes into line when no other of its key is open, else behind it. Whether one is open is looked at once
-- the key is locked, so that no producer of it is under way. `locked`: the caller has locked them, as one does who comes in
-- several pieces and must not wait crosswise with another.
--   MR020  a value that cannot be
CREATE OR REPLACE FUNCTION {{fn:enqueue_rows}}(
    queue text, payloads jsonb[], keys text[], priorities integer[], run_ats timestamptz[], idempotency_keys text[],
    most_attempts integer[], timeouts interval[], metadatas jsonb[], locked boolean DEFAULT false)
RETURNS TABLE (n integer, id bigint, created boolean) LANGUAGE plpgsql VOLATILE
-- Planned once a session, for a table of any size: to plan for the values of each call takes longer than all the rest.
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $mr$
DECLARE
    total integer := pg_catalog.cardinality(payloads);
    right_now timestamptz := pg_catalog.clock_timestamp();
    in_order boolean;
    wanted text[];
    ids bigint[];
    fresh boolean[];
    firsts bigint[];
BEGIN
    IF queue IS NULL OR queue = '' OR pg_catalog.octet_length(queue) > 255 THEN
        RAISE EXCEPTION 'a queue needs a name of 1 to 255 bytes' USING ERRCODE = 'MR020';
    END IF;
    IF EXISTS (SELECT FROM unnest(priorities) AS p WHERE p NOT BETWEEN 0 AND 9) THEN
        RAISE EXCEPTION 'a priority is a number from 0 (first) to 9 (last)' USING ERRCODE = 'MR020';
    END IF;
    IF EXISTS (SELECT FROM unnest(most_attempts) AS a WHERE a < 1) THEN
        RAISE EXCEPTION 'max_attempts must be 1 at least' USING ERRCODE = 'MR020';
    END IF;
    IF EXISTS (SELECT FROM unnest(timeouts) AS t WHERE t <= interval '0') THEN
        RAISE EXCEPTION 'a timeout must be more than 0' USING ERRCODE = 'MR020';
    END IF;
    IF EXISTS (SELECT FROM unnest(keys || idempotency_keys) AS k WHERE k = '' OR pg_catalog.octet_length(k) > 1000) THEN
        RAISE EXCEPTION 'a key has 1 to 1000 bytes' USING ERRCODE = 'MR020';
    END IF;
    wanted := ARRAY(SELECT DISTINCT k FROM unnest(keys) AS k WHERE k IS NOT NULL);
    in_order := pg_catalog.cardinality(wanted) > 0
        AND coalesce((SELECT c.ordered FROM {{queue_controls}} AS c WHERE c.queue = $1), true);
    IF in_order AND NOT locked THEN
        PERFORM {{fn:lock_keys}}(queue, wanted);
    END IF;
    ids := ARRAY(SELECT pg_catalog.nextval({{rellit:jobs:turns}}) FROM pg_catalog.generate_series(1, total));
    IF EXISTS (SELECT FROM unnest(idempotency_keys) AS k WHERE k IS NOT NULL) THEN
        -- In the keys' order, for the same reason as above. Waits for a transaction that has just used one of them.
        WITH given AS (
            SELECT g.k, g.n FROM unnest(idempotency_keys) WITH ORDINALITY AS g(k, n) WHERE g.k IS NOT NULL),
        made AS (
            INSERT INTO {{job_idempotency}} AS i (queue, idempotency_key, job_id)
            SELECT $1, g.k, ids[g.n] FROM given AS g ORDER BY g.k, g.n
            ON CONFLICT DO NOTHING RETURNING i.job_id)
        SELECT pg_catalog.array_agg(g.k IS NULL OR m.job_id IS NOT NULL ORDER BY g.n) INTO fresh
            FROM unnest(idempotency_keys, ids) WITH ORDINALITY AS g(k, id, n) LEFT JOIN made AS m ON m.job_id = g.id;
        SELECT pg_catalog.array_agg(i.job_id ORDER BY g.n) INTO firsts
            FROM unnest(idempotency_keys) WITH ORDINALITY AS g(k, n)
            LEFT JOIN {{job_idempotency}} AS i ON i.queue = $1 AND i.idempotency_key = g.k;
    END IF;
    INSERT INTO {{jobs}} AS j (id, queue, standing, priority, turn, partition_key, partition_bucket, ordered, payload, metadata,
            idempotency_key, queued_at, run_at, max_attempts, timeout)
        SELECT ids[g.n], $1,
            CASE WHEN g.due > right_now THEN 'later'
                WHEN in_order AND g.k IS NOT NULL
                    AND (g.place > 1 OR EXISTS (SELECT FROM {{jobs}} AS o WHERE o.queue = $1 AND o.partition_key = g.k
                            AND o.ordered AND o.standing IN ('ready', 'waiting', 'held'))
                        OR EXISTS (SELECT FROM {{jobs}} AS o WHERE o.queue = $1 AND o.partition_key = g.k
                            AND o.ordered AND o.standing = 'blocked')) THEN 'blocked'
                ELSE 'ready' END,
            coalesce(g.priority, 5), CASE WHEN g.due > right_now THEN NULL ELSE ids[g.n] END,
            g.k, CASE WHEN g.k IS NOT NULL THEN {{fn:key_bucket}}(g.k, (SELECT s.buckets FROM {{job_settings}} AS s)) END,
            in_order AND g.k IS NOT NULL, coalesce(g.payload, '{}'), g.metadata, g.i, right_now, g.due, g.attempts, g.timeout
        FROM (SELECT u.*, CASE WHEN u.k IS NOT NULL AND in_order THEN pg_catalog.row_number() OVER (
                PARTITION BY u.k, u.due > right_now IS TRUE ORDER BY u.n) END AS place
            FROM ROWS FROM (unnest(payloads), unnest(keys), unnest(priorities), unnest(run_ats), unnest(idempotency_keys),
                unnest(most_attempts), unnest(timeouts), unnest(metadatas))
                WITH ORDINALITY AS u(payload, k, priority, due, i, attempts, timeout, metadata, n)
            WHERE u.n <= total AND (fresh IS NULL OR fresh[u.n])) AS g
        ORDER BY g.n;
    RETURN QUERY SELECT g.n::integer, CASE WHEN fresh[g.n] IS FALSE THEN firsts[g.n] ELSE g.id END,
            fresh[g.n] IS NOT FALSE
        FROM unnest(ids) WITH ORDINALITY AS g(id, n) ORDER BY g.n;
END
$mr$;
