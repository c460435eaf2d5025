-- require_outcome(queue, ids, changed): the fence of jobs whose outcome is written in the handler's own transaction.
-- `changed` holds the places in `ids` (from 1) of the rows that took their outcome. When one is missing its claim has
-- moved on (reset, claimed by another, deleted), and the transaction with all its effects must not commit.
--   MR010  a job is not this worker's any more
CREATE OR REPLACE FUNCTION {{fn:require_outcome}}(queue text, ids text[], changed integer[])
RETURNS void LANGUAGE plpgsql STABLE AS $mr$
DECLARE
    place integer;
BEGIN
    IF pg_catalog.cardinality(changed) = pg_catalog.cardinality(ids) THEN
        RETURN;
    END IF;
    FOR place IN 1 .. pg_catalog.cardinality(ids) LOOP
        IF NOT place = ANY (changed) THEN
            RAISE EXCEPTION 'job % of queue % is not this worker''s any more: it was reset, canceled or deleted meanwhile',
                ids[place], queue USING ERRCODE = 'MR010';
        END IF;
    END LOOP;
END
$mr$;
