-- resume_consumer(consumer, who, why, channel): ends a pause of either kind and forgets the last error. One that is not
-- paused is left as it is, with `already` in its audit. Tells workers on the channel (NULL: none). Gives the rows of the
-- audit, one a part.
--   MR007  no such consumer    55P03  a batch does not end (hold_parts)
CREATE OR REPLACE FUNCTION {{fn:resume_consumer}}(consumer text, who text, why text, channel text)
RETURNS SETOF {{consumer_audit}} LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    part text;
    old {{consumer_controls}};
BEGIN
    FOREACH part IN ARRAY {{fn:hold_consumer}}(consumer) LOOP
        PERFORM {{fn:touch_controls}}(part);
        SELECT * INTO old FROM {{consumer_controls}} AS k WHERE k.consumer_name = part FOR NO KEY UPDATE;
        UPDATE {{consumer_controls}} AS k
            SET paused = false, pause_kind = NULL, paused_by = NULL, paused_at = NULL, pause_reason = NULL,
                last_error = NULL, last_error_at = NULL, last_error_position = NULL
            WHERE k.consumer_name = part;
        RETURN QUERY INSERT INTO {{consumer_audit}} (consumer_name, action, actor, reason, detail)
            SELECT part, 'resume', who, why, jsonb_build_object('already', NOT old.paused,
                'position', c.last_position, 'last_error', old.last_error)
                || CASE WHEN old.paused THEN jsonb_build_object('was', jsonb_build_object(
                'kind', old.pause_kind, 'by', old.paused_by, 'at', old.paused_at, 'reason', old.pause_reason))
                ELSE '{}' END
            FROM {{consumer_checkpoints}} AS c WHERE c.consumer_name = part RETURNING *;
    END LOOP;
    IF channel IS NOT NULL THEN
        PERFORM pg_catalog.pg_notify(channel, '');
    END IF;
END
$mr$;
