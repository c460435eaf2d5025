-- depose_leader(leader_lock, timeout): ends the session that holds the leader's lock when its worker has been silent
-- for longer than `timeout`: a stopped process keeps its session, and with it the lock, for ever.
-- Touches only sessions that say they are a Millrace worker. Without the right to do it, it does nothing.
CREATE OR REPLACE FUNCTION {{fn:depose_leader}}(leader_lock bigint, timeout interval)
RETURNS integer LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    ended integer;
BEGIN
    SELECT count(pg_catalog.pg_terminate_backend(l.pid)) INTO ended
        FROM pg_catalog.pg_locks AS l
        JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
        LEFT JOIN {{worker_nodes}} AS n ON a.application_name = 'millrace ' || n.worker_id::text
        WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
            AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d
                WHERE d.datname = pg_catalog.current_database())
            AND ((l.classid::bigint << 32) | l.objid::bigint) = leader_lock
            AND a.application_name LIKE 'millrace %-%-%-%-%'
            AND (n.worker_id IS NULL OR n.state = 'dead'
                OR n.heartbeat_at < pg_catalog.clock_timestamp() - timeout);
    RETURN ended;
EXCEPTION WHEN insufficient_privilege THEN
    RETURN 0;
END
$mr$;
