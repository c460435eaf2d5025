-- absent_workers(): workers that are not declared dead, but whose session lock nobody holds: their process is gone, or is just
-- connecting anew. Where no locks are seen at all, and right after a start of the server, nobody is absent.
CREATE OR REPLACE FUNCTION {{fn:absent_workers}}()
RETURNS SETOF text LANGUAGE sql STABLE AS $mr$
    WITH held AS (
        SELECT (l.classid::bigint << 32) | l.objid::bigint AS lock_id
        FROM pg_catalog.pg_locks AS l WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
            AND pg_catalog.pg_postmaster_start_time() < pg_catalog.clock_timestamp() - interval '10 seconds')
    SELECT n.worker_id::text FROM {{worker_nodes}} AS n
    WHERE n.state <> 'dead' AND n.session_lock IS NOT NULL AND EXISTS (SELECT FROM held)
        AND NOT EXISTS (SELECT FROM held WHERE held.lock_id = n.session_lock)
$mr$;
