-- tend_claims(queue, worker, known, below, floor, spent, ...): a worker looks after its own claims. Those that it says are spent are
-- removed. Those that it does not know, of fences from `floor` on and below `below`, it never heard of: the answer was lost with its
-- connection. Their jobs go back into line as if nothing had been. `below` leaves out claims that are under way just now, or come later:
-- this very call may be one whose answer is lost, and be run when the worker has long claimed anew.
--   attempts, base, most, hold, keep   as in finish_jobs
-- Gives the jobs that were put back; 'canceled' for those that were to be. Never waits for a row.
CREATE OR REPLACE FUNCTION {{fn:tend_claims}}(
    queue text, worker text, known bigint[], below bigint, floor bigint, spent bigint[], attempts integer, base interval,
    most interval, hold boolean, keep boolean)
RETURNS TABLE (id bigint, state text, key text) LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    lost record;
    over boolean;
BEGIN
    IF pg_catalog.cardinality(spent) > 0 THEN
        PERFORM {{fn:drop_claims}}(queue, spent);
    END IF;
    FOR lost IN
        SELECT c.fence, c.ids FROM {{job_claims}} AS c WHERE c.queue = $1 AND c.worker = $2 AND c.fence >= floor AND c.fence < below
            AND c.fence <> ALL (known) ORDER BY c.fence FOR UPDATE SKIP LOCKED
    LOOP
        over := true;
        FOR id, key IN
            SELECT j.id, CASE WHEN j.ordered THEN j.partition_key END FROM {{jobs}} AS j
            WHERE j.id = ANY (lost.ids) AND j.state = 'processing' AND j.lease_generation = lost.fence ORDER BY j.id
        LOOP
            state := {{fn:finish_job}}(id, lost.fence, 'release', NULL, NULL, true, attempts, base, most, hold, keep);
            over := over AND state IS NOT NULL;
            IF state IN ('queued', 'canceled') THEN
                RETURN NEXT;
            END IF;
        END LOOP;
        IF over THEN
            DELETE FROM {{job_claims}} AS c WHERE c.queue = $1 AND c.fence = lost.fence;
        END IF;
    END LOOP;
END
$mr$;
