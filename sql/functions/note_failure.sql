-- note_failure(consumer, worker, what, at_position, pause): the owner tells that its consumer failed at a position, and
-- with `pause` that it stops until somebody resumes it. Returns the consumer's epoch.
CREATE OR REPLACE FUNCTION {{fn:note_failure}}(
    consumer text, worker uuid, what text, at_position bigint, pause boolean)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    right_now timestamptz := pg_catalog.clock_timestamp();
    new_epoch bigint;
BEGIN
    INSERT INTO {{consumer_controls}} AS k (consumer_name) VALUES (consumer)
        ON CONFLICT (consumer_name) DO NOTHING;
    UPDATE {{consumer_controls}} AS k
        SET last_error = what, last_error_at = right_now, last_error_position = at_position,
            updated_at = right_now
        WHERE k.consumer_name = consumer;
    -- Who does not have it any more has nothing to say about it.
    IF pause AND NOT EXISTS (SELECT FROM {{consumer_assignments}} AS a
            WHERE a.consumer_name = consumer AND a.worker_id <> worker) THEN
        UPDATE {{consumer_controls}} AS k
            SET paused = true, pause_kind = 'failure', paused_by = 'worker ' || worker::text,
                paused_at = right_now, pause_reason = what, epoch = k.epoch + 1
            WHERE k.consumer_name = consumer AND NOT k.paused;
        IF FOUND THEN
            INSERT INTO {{consumer_audit}} (consumer_name, action, actor, reason, detail)
                VALUES (consumer, 'pause', 'worker ' || worker::text, what,
                    jsonb_build_object('position', at_position, 'kind', 'failure'));
        END IF;
    END IF;
    SELECT k.epoch INTO new_epoch FROM {{consumer_controls}} AS k WHERE k.consumer_name = consumer;
    RETURN new_epoch;
END
$mr$;
