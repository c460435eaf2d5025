-- resume_queue(queue, who, why): workers claim jobs of the queue again. One that is not paused is left as it is, with `already` in its audit.
-- Gives the row of the audit.
--   MR007  no such queue
CREATE OR REPLACE FUNCTION {{fn:resume_queue}}(queue text, who text DEFAULT NULL, why text DEFAULT NULL)
RETURNS SETOF {{queue_audit}} LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    old {{queue_controls}};
BEGIN
    IF NOT EXISTS (SELECT FROM {{fn:known_queues}}() AS k(name) WHERE k.name = $1) THEN
        RAISE EXCEPTION 'there is no queue %', queue USING ERRCODE = 'MR007';
    END IF;
    SELECT * INTO old FROM {{queue_controls}} AS c WHERE c.queue = $1 FOR NO KEY UPDATE;
    IF old.paused THEN
        UPDATE {{queue_controls}} AS c SET paused = false, paused_by = NULL, paused_at = NULL, pause_reason = NULL,
            updated_at = pg_catalog.clock_timestamp() WHERE c.queue = $1;
    END IF;
    RETURN QUERY INSERT INTO {{queue_audit}} (queue, action, actor, reason, detail)
        VALUES ($1, 'resume', who, why, pg_catalog.jsonb_build_object('already', old.paused IS NOT TRUE)
            || CASE WHEN old.paused THEN pg_catalog.jsonb_build_object('was', pg_catalog.jsonb_build_object(
                'by', old.paused_by, 'at', old.paused_at, 'reason', old.pause_reason)) ELSE '{}' END)
        RETURNING *;
END
$mr$;
