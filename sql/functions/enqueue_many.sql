-- enqueue_many(queue, jobs): many jobs from a JSON array of objects with the names of enqueue()'s arguments, in one
-- call: [{"payload": {...}, "key": "order:1", "run_at": "2026-01-31T12:00:00Z"}, ...]. Gives their ids in that order.
CREATE OR REPLACE FUNCTION {{fn:enqueue_many}}(queue text, jobs jsonb)
RETURNS TABLE (n integer, id bigint, created boolean) LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    odd text;
BEGIN
    IF pg_catalog.jsonb_typeof(jobs) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'enqueue_many wants a JSON array of objects' USING ERRCODE = 'MR020';
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.jsonb_array_elements(jobs) AS j WHERE pg_catalog.jsonb_typeof(j) <> 'object') THEN
        RAISE EXCEPTION 'enqueue_many wants an array of objects such as {"payload": {}, "key": "order:1"}'
            USING ERRCODE = 'MR020';
    END IF;
    SELECT DISTINCT k INTO odd FROM pg_catalog.jsonb_array_elements(jobs) AS j, pg_catalog.jsonb_object_keys(j) AS k
        WHERE k NOT IN ('payload', 'key', 'priority', 'run_at', 'idempotency_key', 'max_attempts', 'timeout', 'metadata')
        LIMIT 1;
    IF odd IS NOT NULL THEN
        RAISE EXCEPTION 'a job has no field "%"', odd USING ERRCODE = 'MR020', HINT =
            'fields are payload, key, priority, run_at, idempotency_key, max_attempts, timeout, metadata';
    END IF;
    RETURN QUERY SELECT r.* FROM (
        SELECT pg_catalog.array_agg(coalesce(j.payload, '{}')) AS p, pg_catalog.array_agg(j.key) AS k,
            pg_catalog.array_agg(j.priority) AS pr, pg_catalog.array_agg(j.run_at) AS ra,
            pg_catalog.array_agg(j.idempotency_key) AS ik, pg_catalog.array_agg(j.max_attempts) AS ma,
            pg_catalog.array_agg(j.timeout) AS ti, pg_catalog.array_agg(j.metadata) AS me
        FROM pg_catalog.jsonb_to_recordset(jobs) AS j(payload jsonb, key text, priority integer, run_at timestamptz,
            idempotency_key text, max_attempts integer, timeout interval, metadata jsonb)) AS a,
        {{fn:enqueue_rows}}($1, a.p, a.k, a.pr, a.ra, a.ik, a.ma, a.ti, a.me) AS r
        WHERE a.p IS NOT NULL;
END
$mr$;
