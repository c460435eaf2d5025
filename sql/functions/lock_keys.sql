-- lock_keys(queue, keys): producers of the same key wait for each other until they commit, so that jobs of a key are
-- numbered in the order in which they are committed. Sorted, so that two calls do not wait crosswise.
-- The server has room for a few thousand locks. A transaction that begins with many keys at once takes whole buckets
-- instead, in order; one that began with few goes on key by key, because to exchange a share of a bucket for the whole of it could
-- wait for somebody who does the same. Who takes a key also shares its bucket, so the two kinds exclude each other.
--   MR020  too many keys one by one
CREATE OR REPLACE FUNCTION {{fn:lock_keys}}(queue text, keys text[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    buckets integer := (SELECT s.buckets FROM {{job_settings}} AS s);
    held text := coalesce(pg_catalog.current_setting('millrace.keys', true), '');
    total integer := CASE WHEN held NOT IN ('', 'buckets') THEN held::integer ELSE 0 END + pg_catalog.cardinality(keys);
    few CONSTANT integer := 200;
    most CONSTANT integer := 3000;
BEGIN
    IF held = 'buckets' OR (held = '' AND total > few) THEN
        PERFORM pg_catalog.pg_advisory_xact_lock({{fn:job_lock}}(queue, 'b' || b.bucket))
            FROM (SELECT DISTINCT {{fn:key_bucket}}(k, buckets) AS bucket FROM unnest(keys) AS k ORDER BY 1) AS b;
        IF held = '' THEN
            PERFORM pg_catalog.set_config('millrace.keys', 'buckets', true);
        END IF;
        RETURN;
    END IF;
    IF total > most THEN
        RAISE EXCEPTION 'this transaction has enqueued jobs of % keys one by one', total USING ERRCODE = 'MR020',
            HINT = 'enqueue them with one enqueue_many() at the beginning of the transaction, or commit in between';
    END IF;
    PERFORM pg_catalog.pg_advisory_xact_lock_shared({{fn:job_lock}}(queue, 'b' || b.bucket))
        FROM (SELECT DISTINCT {{fn:key_bucket}}(k, buckets) AS bucket FROM unnest(keys) AS k ORDER BY 1) AS b;
    PERFORM pg_catalog.pg_advisory_xact_lock({{fn:job_lock}}(queue, 'k' || s.k))
        FROM (SELECT DISTINCT k FROM unnest(keys) AS k ORDER BY 1) AS s;
    PERFORM pg_catalog.set_config('millrace.keys', total::text, true);
END
$mr$;
