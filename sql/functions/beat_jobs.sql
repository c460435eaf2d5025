-- beat_jobs(ids, fences, renew): which of these claims still stand, and which jobs are to be canceled. Gives the place of each
-- that stands. The lease is written anew only once `renew` of it has passed, so a short job is never written for it.
-- `stamped` is false for a row that somebody has locked: it stands all the same. Never waits.
CREATE OR REPLACE FUNCTION {{fn:beat_jobs}}(ids bigint[], fences bigint[], renew interval)
RETURNS TABLE (n integer, cancel boolean, stamped boolean) LANGUAGE plpgsql VOLATILE
-- The plan must not change with what the planner thinks of the table just now.
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off AS $mr$
DECLARE
    right_now timestamptz := pg_catalog.clock_timestamp();
    old bigint[];
BEGIN
    old := ARRAY(SELECT j.id FROM unnest(ids, fences) AS g(id, fence) JOIN {{jobs}} AS j ON j.id = g.id
        WHERE j.id = ANY (ids) AND j.state = 'processing' AND j.lease_generation = g.fence
            AND j.last_heartbeat_at < right_now - renew
        ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED);
    IF pg_catalog.cardinality(old) > 0 THEN
        UPDATE {{jobs}} AS j SET last_heartbeat_at = right_now WHERE j.id = ANY (old);
    END IF;
    RETURN QUERY SELECT g.n::integer, j.cancel, j.last_heartbeat_at >= right_now - renew
        FROM unnest(ids, fences) WITH ORDINALITY AS g(id, fence, n) JOIN {{jobs}} AS j ON j.id = g.id
        WHERE j.id = ANY (ids) AND j.state = 'processing' AND j.lease_generation = g.fence;
END
$mr$;
