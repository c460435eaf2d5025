-- skip_position(part, skipped, who, why, channel): this part of a consumer (the checkpoint's own name) will not handle
-- the event at `skipped`. The request waits in consumer_controls.skips until a batch comes to it (pass_skips). The caller
-- sees to it that there is such an event, and that this part is the one it belongs to. Ends a pause that a failure at
-- this very position made. Tells workers on the channel (NULL: none). Gives the row of the audit.
--   MR007  no such part    55P03  a batch does not end (hold_parts)
--   MR008  it was handled or passed already, or is asked for already
CREATE OR REPLACE FUNCTION {{fn:skip_position}}(part text, skipped bigint, who text, why text, channel text)
RETURNS SETOF {{consumer_audit}} LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    reached bigint;
    old {{consumer_controls}};
    asked jsonb;
    failed boolean;
BEGIN
    PERFORM {{fn:hold_parts}}(ARRAY[part]);
    SELECT c.last_position INTO reached FROM {{consumer_checkpoints}} AS c WHERE c.consumer_name = part;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no consumer %; see: millrace consumers list', part USING ERRCODE = 'MR007';
    END IF;
    IF skipped <= reached THEN
        RAISE EXCEPTION 'consumer % has handled or passed position % already: its checkpoint is at %', part, skipped,
            reached || CASE WHEN EXISTS (SELECT FROM {{consumer_dead_letters}} AS l
                WHERE l.consumer_name = part AND l.global_position = skipped)
                THEN '; it is a dead letter: millrace dead-letters drop removes it' ELSE '' END
            USING ERRCODE = 'MR008';
    END IF;
    PERFORM {{fn:touch_controls}}(part);
    SELECT * INTO old FROM {{consumer_controls}} AS k WHERE k.consumer_name = part FOR NO KEY UPDATE;
    SELECT i.item INTO asked FROM jsonb_array_elements(old.skips) AS i(item)
        WHERE (i.item->>'position')::bigint = skipped LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'position % of consumer % is to be skipped already: % asked for it', skipped, part,
            coalesce(asked->>'by', 'somebody') USING ERRCODE = 'MR008';
    END IF;
    failed := coalesce(old.paused AND old.pause_kind = 'failure' AND old.last_error_position = skipped, false);
    UPDATE {{consumer_controls}} AS k
        SET skips = k.skips || jsonb_build_array(jsonb_build_object('position', skipped, 'by', who, 'reason', why,
            'at', pg_catalog.clock_timestamp()))
        WHERE k.consumer_name = part;
    UPDATE {{consumer_controls}} AS k
        SET paused = false, pause_kind = NULL, paused_by = NULL, paused_at = NULL, pause_reason = NULL,
            last_error = NULL, last_error_at = NULL, last_error_position = NULL
        WHERE k.consumer_name = part AND failed;
    RETURN QUERY INSERT INTO {{consumer_audit}} (consumer_name, action, actor, reason, detail)
        VALUES (part, 'skip', who, why, jsonb_build_object('position', skipped, 'checkpoint', reached,
            'resumed', failed))
        RETURNING *;
    IF channel IS NOT NULL THEN
        PERFORM pg_catalog.pg_notify(channel, '');
    END IF;
END
$mr$;
