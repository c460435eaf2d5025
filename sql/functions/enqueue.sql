-- enqueue(queue, payload, key => ...): one job, in the caller's own transaction. Gives its id, and created = false with the first
-- one's id when there is a job of that idempotency key already.
--   key              jobs of a key run one after the other, in the order in which they were committed
--   priority         0 first, 9 last, 5 unless told; among jobs of one key it changes nothing
--   run_at           not before then
--   max_attempts     instead of the queue's; timeout: of one attempt
CREATE OR REPLACE FUNCTION {{fn:enqueue}}(
    queue text, payload jsonb DEFAULT '{}', key text DEFAULT NULL, priority integer DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, idempotency_key text DEFAULT NULL, max_attempts integer DEFAULT NULL,
    timeout interval DEFAULT NULL, metadata jsonb DEFAULT NULL, OUT id bigint, OUT created boolean)
LANGUAGE plpgsql VOLATILE AS $mr$
BEGIN
    SELECT r.id, r.created INTO id, created FROM {{fn:enqueue_rows}}($1, ARRAY[$2], ARRAY[$3], ARRAY[$4], ARRAY[$5],
        ARRAY[$6], ARRAY[$7], ARRAY[$8], ARRAY[$9]) AS r;
END
$mr$;
