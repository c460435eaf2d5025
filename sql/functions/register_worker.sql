-- register_worker(...): makes or renews a worker's row and the assignments it can take, and takes its session lock.
-- Called each time the worker's control connection comes up. Rows that have been silent for `stale_after` are
-- removed on the way. `lock_id` is NULL where sessions do not last (a transaction pooler). `again`: it was registered
-- before, so its row must be there.
-- Returns 0 when the worker was declared dead or its row is gone, and needs a new id, 1 when it is registered but an older session of
-- its own still held the lock (try again), 2 when all is done. That older session is ended: after a cut that the
-- server has not noticed it would keep its locks, the leader's among them, until TCP gives up, for hours.
CREATE OR REPLACE FUNCTION {{fn:register_worker}}(
    worker uuid, new_host text, new_pid integer, new_version text, new_consumers text[],
    lock_id bigint, stale_after interval, again boolean, new_queues text[] DEFAULT '{}')
RETURNS integer LANGUAGE plpgsql VOLATILE AS $mr$
BEGIN
    DELETE FROM {{worker_nodes}} AS n
        WHERE n.heartbeat_at < pg_catalog.clock_timestamp() - stale_after AND n.worker_id <> worker;
    IF again AND NOT EXISTS (SELECT FROM {{worker_nodes}} AS n WHERE n.worker_id = worker) THEN
        RETURN 0;
    END IF;
    INSERT INTO {{worker_nodes}} AS n (worker_id, host, pid, version, consumers, queues, session_lock)
        VALUES (worker, new_host, new_pid, new_version, new_consumers, new_queues, lock_id)
        ON CONFLICT (worker_id) DO UPDATE SET heartbeat_at = pg_catalog.clock_timestamp(),
            updated_at = pg_catalog.clock_timestamp(), consumers = excluded.consumers,
            queues = excluded.queues
            WHERE n.state <> 'dead';
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    INSERT INTO {{consumer_assignments}} (consumer_name)
        SELECT name FROM unnest(new_consumers) AS name ORDER BY name
        ON CONFLICT (consumer_name) DO NOTHING;
    IF lock_id IS NULL OR pg_catalog.pg_try_advisory_lock(lock_id) THEN
        RETURN 2;
    END IF;
    PERFORM pg_catalog.pg_terminate_backend(l.pid)
        FROM pg_catalog.pg_locks AS l
        JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
        WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
            AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d
                WHERE d.datname = pg_catalog.current_database())
            AND ((l.classid::bigint << 32) | l.objid::bigint) = lock_id
            AND l.pid <> pg_catalog.pg_backend_pid()
            AND a.application_name = 'millrace ' || worker::text;
    RETURN 1;
END
$mr$;
