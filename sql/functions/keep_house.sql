-- keep_house(keep, window, after): what one worker of the fleet does now and then, whichever gets the lock: the archive's days, old
-- promises of idempotency keys, keys that nobody promoted, gauges. Every step is bounded. Gives NULL when another has the lock.
--   keep     how long finished jobs stay in the archive
--   window   how long an idempotency key is remembered, from when it was used; in any case as long as its job is open
--   after    where the sweep goes on (sweep_keys)
CREATE OR REPLACE FUNCTION {{fn:keep_house}}(keep interval, "window" interval, after text[])
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    days text[];
    forgotten integer;
    swept record;
BEGIN
    IF NOT pg_catalog.pg_try_advisory_xact_lock({{fn:job_lock}}('', 'house')) THEN
        RETURN NULL;
    END IF;
    -- Once a pass: it may wait for somebody who reads the archive, and those who finish jobs wait behind it.
    IF after IS NULL THEN
        days := ARRAY(SELECT {{fn:archive_days}}(keep));
    END IF;
    WITH old AS MATERIALIZED (
        SELECT i.queue, i.idempotency_key FROM {{job_idempotency}} AS i
        WHERE i.created_at < pg_catalog.now() - "window"
            AND NOT EXISTS (SELECT FROM {{jobs}} AS j WHERE j.id = i.job_id AND j.standing IS NOT NULL)
        ORDER BY i.created_at LIMIT 5000 FOR UPDATE SKIP LOCKED),
    gone AS (
        DELETE FROM {{job_idempotency}} AS i USING old AS o
        WHERE i.queue = o.queue AND i.idempotency_key = o.idempotency_key RETURNING 1)
    SELECT pg_catalog.count(*) INTO forgotten FROM gone;
    SELECT s.after, s.stuck INTO swept FROM {{fn:sweep_keys}}(after, 1000) AS s;
    -- Gauges, none of which counts further than 10,000.
    RETURN pg_catalog.jsonb_build_object('days', days, 'forgotten', forgotten, 'after', swept.after, 'stuck', swept.stuck,
        'in_line', (SELECT pg_catalog.count(*) FROM (SELECT FROM {{jobs}} AS j
            WHERE j.standing = 'ready' AND j.state <> 'processing' LIMIT 10000) AS r),
        'dead', (SELECT pg_catalog.count(*) FROM (SELECT FROM {{jobs}} AS j
            WHERE j.standing IS NULL OR j.standing = 'held' LIMIT 10000) AS d),
        'oldest', (SELECT (extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.min(r.since)) * 1000)::bigint
            FROM (SELECT greatest(j.queued_at, j.run_at, j.last_heartbeat_at) AS since FROM {{jobs}} AS j
                WHERE j.standing = 'ready' AND j.state <> 'processing' ORDER BY j.queue, j.priority, j.turn LIMIT 10000) AS r));
END
$mr$;
