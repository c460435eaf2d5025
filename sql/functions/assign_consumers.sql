-- assign_consumers(worker, leader_lock, names, owners): the leader gives each named consumer to its new owner (NULL:
-- to nobody). Fenced by require_leader. Waits for no batch: batches never lock assignments. Tells waiting workers on
-- the channel. Returns how many moved.
CREATE OR REPLACE FUNCTION {{fn:assign_consumers}}(
    worker uuid, leader_lock bigint, names text[], owners uuid[], channel text)
RETURNS integer LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    moved integer;
BEGIN
    PERFORM {{fn:require_leader}}(worker, leader_lock);
    UPDATE {{consumer_assignments}} AS a
        SET worker_id = w.owner, generation = a.generation + 1,
            updated_at = pg_catalog.clock_timestamp()
        FROM unnest(names, owners) AS w(name, owner)
        WHERE a.consumer_name = w.name AND a.worker_id IS DISTINCT FROM w.owner;
    GET DIAGNOSTICS moved = ROW_COUNT;
    IF channel IS NOT NULL THEN
        PERFORM pg_catalog.pg_notify(channel, '');
    END IF;
    RETURN moved;
END
$mr$;
