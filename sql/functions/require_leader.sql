-- require_leader(worker, leader_lock): the fence of everything a leader writes. Raises MR006 unless this very session
-- holds the leader's lock, or (leader_lock NULL) the worker's lease runs; the lease's row stays locked until the end
-- of the transaction, so that nobody can take it over in between.
CREATE OR REPLACE FUNCTION {{fn:require_leader}}(worker uuid, leader_lock bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $mr$
BEGIN
    IF leader_lock IS NULL THEN
        PERFORM FROM {{worker_leader_election}} AS l
            WHERE l.lease_key = 'leader' AND l.leader_id = worker
                AND l.expires_at > pg_catalog.clock_timestamp() FOR UPDATE;
    ELSE
        PERFORM FROM pg_catalog.pg_locks AS l
            WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
                AND l.pid = pg_catalog.pg_backend_pid()
                AND ((l.classid::bigint << 32) | l.objid::bigint) = leader_lock;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'worker % is not the leader any more', worker USING ERRCODE = 'MR006';
    END IF;
END
$mr$;
