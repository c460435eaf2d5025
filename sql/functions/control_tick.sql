-- control_tick(...): what a worker does about once a second, in one statement: stamps its heartbeat, tries for the
-- leadership or keeps it, learns what it owns. The leader also gets a picture of the whole fleet.
--   beat          stamp the heartbeat and store `new_info` with it
--   leader_lock   key of the leader's session lock; NULL: the leader holds a lease of `timeout` instead
--   is_leader     it held the leadership at the last tick of this session
--   may_lead      it wants to lead at all (a worker that drains does not)
--   mine          consumers with a lock of their own (ownership: lock) that it runs or wants to run
--   wanted        keys of those locks that it does not hold yet, in the order of wanted_names
-- Returns: known (false: its row is gone or it was declared dead), leader, owned, picture; got: the names whose lock
-- this session holds from now on; epochs: {consumer: epoch} of those it owns or runs, where it is not 0.
CREATE OR REPLACE FUNCTION {{fn:control_tick}}(
    worker uuid, beat boolean, new_info jsonb, leader_lock bigint, is_leader boolean, may_lead boolean,
    timeout interval, mine text[] DEFAULT '{}', wanted_names text[] DEFAULT '{}', wanted bigint[] DEFAULT '{}')
RETURNS TABLE (known boolean, leader boolean, owned text[], picture jsonb, got text[], epochs jsonb)
LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    right_now timestamptz := pg_catalog.clock_timestamp();
BEGIN
    IF beat THEN
        UPDATE {{worker_nodes}} AS n SET heartbeat_at = right_now, updated_at = right_now, info = new_info
            WHERE n.worker_id = worker AND n.state <> 'dead';
        known := FOUND;
    ELSE
        known := EXISTS (SELECT FROM {{worker_nodes}} AS n
            WHERE n.worker_id = worker AND n.state <> 'dead');
    END IF;
    leader := false;
    IF known AND may_lead THEN
        IF leader_lock IS NULL THEN
            leader := {{fn:take_lease}}(worker, beat, timeout);
        ELSE
            leader := is_leader OR pg_catalog.pg_try_advisory_lock(leader_lock);
            IF beat AND NOT leader THEN
                PERFORM {{fn:depose_leader}}(leader_lock, timeout);
            END IF;
        END IF;
    END IF;
    owned := ARRAY(SELECT a.consumer_name FROM {{consumer_assignments}} AS a
        WHERE a.worker_id = worker ORDER BY 1);
    IF known AND may_lead THEN
        got := ARRAY(SELECT w.name FROM unnest(wanted_names, wanted) AS w(name, key)
            WHERE pg_catalog.pg_try_advisory_lock(w.key));
    END IF;
    epochs := (SELECT jsonb_object_agg(k.consumer_name, k.epoch) FROM {{consumer_controls}} AS k
        WHERE k.epoch <> 0 AND k.consumer_name = ANY(owned || mine));
    IF leader THEN
        -- Sessions that are only just coming back after a restart of the server must not look dead.
        picture := (
            WITH held AS (
                SELECT (l.classid::bigint << 32) | l.objid::bigint AS lock_id
                FROM pg_catalog.pg_locks AS l
                WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
                    AND pg_catalog.pg_postmaster_start_time() < right_now - interval '10 seconds')
            SELECT jsonb_build_object(
                'workers', coalesce((SELECT jsonb_agg(jsonb_build_object(
                    'id', n.worker_id,
                    'consumers', n.consumers,
                    'draining', n.state = 'draining',
                    'stale', n.heartbeat_at < right_now - timeout,
                    'absent', n.session_lock IS NOT NULL AND EXISTS (SELECT FROM held)
                        AND NOT EXISTS (SELECT FROM held WHERE held.lock_id = n.session_lock)))
                    FROM {{worker_nodes}} AS n WHERE n.state <> 'dead'), '[]'),
                'assignments', coalesce((SELECT jsonb_agg(jsonb_build_object(
                    'name', a.consumer_name, 'owner', a.worker_id))
                    FROM {{consumer_assignments}} AS a), '[]')));
    END IF;
    RETURN NEXT;
END
$mr$;
