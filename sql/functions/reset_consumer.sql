-- reset_consumer(consumer, target, who, why, channel): puts the checkpoint (of each slot) at `target`, back or forward.
-- Dead letters above it go, since their events are handled again; requests to skip above it stay, those at or below it
-- have no more meaning. Ends a pause after a failure, not one by command. The audit's detail has `from`, `to`,
-- `letters` (positions of removed ones), `skips` (removed requests), `resumed`; going forward also `skipped_from` and
-- `skipped_to`: what is passed over without being handled. The caller sees to it that `target` is not above the head.
-- Tells workers on the channel (NULL: none). Gives the rows of the audit, one a part.
--   MR007  no such consumer    55P03  a batch does not end (hold_parts)    22023  a negative target
CREATE OR REPLACE FUNCTION {{fn:reset_consumer}}(consumer text, target bigint, who text, why text, channel text)
RETURNS SETOF {{consumer_audit}} LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    part text;
    old bigint;
    facts jsonb;
    failed boolean;
BEGIN
    IF target IS NULL OR target < 0 THEN
        RAISE EXCEPTION 'a position cannot be negative' USING ERRCODE = '22023';
    END IF;
    FOREACH part IN ARRAY {{fn:hold_consumer}}(consumer) LOOP
        SELECT c.last_position INTO old FROM {{consumer_checkpoints}} AS c WHERE c.consumer_name = part;
        CONTINUE WHEN NOT FOUND; -- removed for good while we waited
        UPDATE {{consumer_checkpoints}} AS c SET last_position = target, updated_at = pg_catalog.clock_timestamp()
            WHERE c.consumer_name = part;
        WITH gone AS (
            DELETE FROM {{consumer_dead_letters}} AS l
                WHERE l.consumer_name = part AND l.global_position > target RETURNING l.global_position)
            SELECT jsonb_build_object('from', old, 'to', target, 'letters',
                    coalesce(jsonb_agg(g.global_position ORDER BY g.global_position), '[]'))
                INTO facts FROM gone AS g;
        IF target > old THEN
            facts := facts || jsonb_build_object('skipped_from', old + 1, 'skipped_to', target);
        END IF;
        PERFORM {{fn:touch_controls}}(part);
        SELECT k.paused AND k.pause_kind = 'failure', facts || jsonb_build_object('skips', coalesce((
                SELECT jsonb_agg(i.item) FROM jsonb_array_elements(k.skips) AS i(item)
                WHERE (i.item->>'position')::bigint <= target), '[]'))
            INTO failed, facts FROM {{consumer_controls}} AS k WHERE k.consumer_name = part;
        UPDATE {{consumer_controls}} AS k
            SET last_error = NULL, last_error_at = NULL, last_error_position = NULL,
                skips = coalesce((SELECT jsonb_agg(i.item) FROM jsonb_array_elements(k.skips) AS i(item)
                    WHERE (i.item->>'position')::bigint > target), '[]')
            WHERE k.consumer_name = part;
        UPDATE {{consumer_controls}} AS k
            SET paused = false, pause_kind = NULL, paused_by = NULL, paused_at = NULL, pause_reason = NULL
            WHERE k.consumer_name = part AND failed;
        RETURN QUERY INSERT INTO {{consumer_audit}} (consumer_name, action, actor, reason, detail)
            VALUES (part, 'reset', who, why, facts || jsonb_build_object('resumed', coalesce(failed, false)))
            RETURNING *;
    END LOOP;
    IF channel IS NOT NULL THEN
        PERFORM pg_catalog.pg_notify(channel, '');
    END IF;
END
$mr$;
