-- pause_consumer(consumer, who, why, channel): no further batch of the consumer (of each of its slots) commits until
-- somebody resumes it. A pause after a failure becomes one by command. One by command already stays as it was, with
-- `already` in its audit. Tells workers on the channel (NULL: none). Gives the rows of the audit, one a part.
--   MR007  no such consumer    55P03  a batch does not end (hold_parts)
CREATE OR REPLACE FUNCTION {{fn:pause_consumer}}(consumer text, who text, why text, channel text)
RETURNS SETOF {{consumer_audit}} LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    part text;
    old {{consumer_controls}};
    right_now timestamptz;
BEGIN
    FOREACH part IN ARRAY {{fn:hold_consumer}}(consumer) LOOP
        right_now := pg_catalog.clock_timestamp();
        PERFORM {{fn:touch_controls}}(part);
        SELECT * INTO old FROM {{consumer_controls}} AS k WHERE k.consumer_name = part FOR NO KEY UPDATE;
        UPDATE {{consumer_controls}} AS k
            SET paused = true, pause_kind = 'command', paused_by = who, paused_at = right_now, pause_reason = why
            WHERE k.consumer_name = part AND NOT (k.paused AND k.pause_kind IS NOT DISTINCT FROM 'command');
        RETURN QUERY INSERT INTO {{consumer_audit}} (consumer_name, action, actor, reason, detail)
            SELECT part, 'pause', who, why, jsonb_build_object('kind', 'command', 'already', old.paused,
                'position', c.last_position) || CASE WHEN old.paused THEN jsonb_build_object('was', jsonb_build_object(
                'kind', old.pause_kind, 'by', old.paused_by, 'at', old.paused_at, 'reason', old.pause_reason))
                ELSE '{}' END
            FROM {{consumer_checkpoints}} AS c WHERE c.consumer_name = part RETURNING *;
    END LOOP;
    IF channel IS NOT NULL THEN
        PERFORM pg_catalog.pg_notify(channel, '');
    END IF;
END
$mr$;
