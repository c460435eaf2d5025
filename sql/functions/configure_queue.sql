-- configure_queue(queue, in_order, limit): what a worker's configuration says of a queue, for producers and for people.
-- Whether keys are in order can only change while no job with a key is open: those that are would be forgotten behind each other,
-- or run side by side.
--   MR021  it cannot change now
CREATE OR REPLACE FUNCTION {{fn:configure_queue}}(queue text, in_order boolean, most_running integer)
RETURNS void LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    old {{queue_controls}};
BEGIN
    INSERT INTO {{queue_controls}} AS c (queue, ordered, max_running) VALUES ($1, in_order, most_running) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        old.ordered := true; -- as its producers took it to be
        old.max_running := most_running;
    ELSE
        SELECT * INTO old FROM {{queue_controls}} AS c WHERE c.queue = $1;
    END IF;
    IF old.ordered IS DISTINCT FROM in_order AND EXISTS (SELECT FROM {{jobs}} AS j
            WHERE j.queue = $1 AND j.partition_key IS NOT NULL AND j.standing IS NOT NULL AND j.ordered <> in_order) THEN
        RAISE EXCEPTION 'queue % has jobs with keys that were enqueued with order: %', queue,
                CASE WHEN in_order THEN 'none' ELSE 'key' END
            USING ERRCODE = 'MR021', HINT = 'let them finish, or cancel them, before the order changes';
    END IF;
    IF old.ordered IS DISTINCT FROM in_order OR old.max_running IS DISTINCT FROM most_running THEN
        UPDATE {{queue_controls}} AS c SET ordered = in_order, max_running = most_running,
            updated_at = pg_catalog.clock_timestamp() WHERE c.queue = $1;
    END IF;
END
$mr$;
