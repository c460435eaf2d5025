-- leave_fleet(worker, leader_lock, is_leader, for_good): on the way out. First call: the worker drains, gets nothing
-- new, and gives up the leadership. Second call (for_good): its row goes, and with it what it still owned.
CREATE OR REPLACE FUNCTION {{fn:leave_fleet}}(
    worker uuid, leader_lock bigint, is_leader boolean, for_good boolean)
RETURNS void LANGUAGE plpgsql VOLATILE AS $mr$
BEGIN
    IF leader_lock IS NULL THEN
        UPDATE {{worker_leader_election}} AS l
            SET leader_id = NULL, expires_at = pg_catalog.clock_timestamp() - interval '1 minute',
                updated_at = pg_catalog.clock_timestamp()
            WHERE l.lease_key = 'leader' AND l.leader_id = worker;
    ELSE
        -- As often as it was taken: a tick that failed after it took the lock took it once more than the worker knows,
        -- and with a tick still on its way it holds it without knowing at all.
        WHILE EXISTS (SELECT FROM pg_catalog.pg_locks AS l
            WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
                AND l.pid = pg_catalog.pg_backend_pid()
                AND ((l.classid::bigint << 32) | l.objid::bigint) = leader_lock)
        LOOP
            EXIT WHEN NOT pg_catalog.pg_advisory_unlock(leader_lock);
        END LOOP;
    END IF;
    IF for_good THEN
        DELETE FROM {{worker_nodes}} AS n WHERE n.worker_id = worker;
    ELSE
        UPDATE {{worker_nodes}} AS n SET state = 'draining', updated_at = pg_catalog.clock_timestamp()
            WHERE n.worker_id = worker AND n.state = 'alive';
    END IF;
END
$mr$;
