-- bury_workers(worker, leader_lock, ids): the leader declares workers dead whose heartbeat is over, and ends their
-- sessions, so that a stopped process does not hold a checkpoint's row. Fenced by require_leader. A worker that wakes
-- up finds itself dead and registers anew. Returns how many were buried.
CREATE OR REPLACE FUNCTION {{fn:bury_workers}}(worker uuid, leader_lock bigint, ids uuid[])
RETURNS integer LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    buried integer;
BEGIN
    PERFORM {{fn:require_leader}}(worker, leader_lock);
    UPDATE {{worker_nodes}} AS n SET state = 'dead', updated_at = pg_catalog.clock_timestamp()
        WHERE n.worker_id = ANY(ids) AND n.state <> 'dead';
    GET DIAGNOSTICS buried = ROW_COUNT;
    BEGIN
        PERFORM pg_catalog.pg_terminate_backend(a.pid)
            FROM pg_catalog.pg_stat_activity AS a
            JOIN unnest(ids) AS dead(id) ON a.application_name = 'millrace ' || dead.id::text;
    EXCEPTION WHEN insufficient_privilege THEN
        NULL; -- idle_in_transaction_session_timeout ends them later
    END;
    RETURN buried;
END
$mr$;
