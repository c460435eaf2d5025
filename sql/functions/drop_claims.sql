-- drop_claims(queue, spent): removes claims of which no job runs any more, as whoever has them knows. Never waits: what somebody
-- has locked is left to the resetter.
CREATE OR REPLACE FUNCTION {{fn:drop_claims}}(queue text, spent bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $mr$ -- so that its plan is kept
BEGIN
    DELETE FROM {{job_claims}} AS d WHERE d.queue = $1 AND d.fence = ANY (ARRAY(
        SELECT c.fence FROM {{job_claims}} AS c WHERE c.queue = $1 AND c.fence = ANY (spent) ORDER BY c.fence FOR UPDATE SKIP LOCKED));
END
$mr$;
