-- pause_queue(queue, who, why): workers claim no more jobs of the queue until somebody resumes it; those that run finish. One that is paused
-- stays as it was, with `already` in its audit. Gives the row of the audit.
--   MR007  no such queue
CREATE OR REPLACE FUNCTION {{fn:pause_queue}}(queue text, who text DEFAULT NULL, why text DEFAULT NULL)
RETURNS SETOF {{queue_audit}} LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    old {{queue_controls}};
BEGIN
    IF NOT EXISTS (SELECT FROM {{fn:known_queues}}() AS k(name) WHERE k.name = $1) THEN
        RAISE EXCEPTION 'there is no queue %', queue USING ERRCODE = 'MR007';
    END IF;
    INSERT INTO {{queue_controls}} (queue) VALUES ($1) ON CONFLICT DO NOTHING;
    SELECT * INTO old FROM {{queue_controls}} AS c WHERE c.queue = $1 FOR NO KEY UPDATE;
    IF NOT old.paused THEN
        UPDATE {{queue_controls}} AS c SET paused = true, paused_by = who, paused_at = pg_catalog.clock_timestamp(),
            pause_reason = why, updated_at = pg_catalog.clock_timestamp() WHERE c.queue = $1;
    END IF;
    RETURN QUERY INSERT INTO {{queue_audit}} (queue, action, actor, reason, detail)
        VALUES ($1, 'pause', who, why, pg_catalog.jsonb_build_object('already', old.paused)
            || CASE WHEN old.paused THEN pg_catalog.jsonb_build_object('was', pg_catalog.jsonb_build_object(
                'by', old.paused_by, 'at', old.paused_at, 'reason', old.pause_reason)) ELSE '{}' END)
        RETURNING *;
END
$mr$;
