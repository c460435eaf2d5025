-- drop_letters(filter, who, why, channel): removes these dead letters (find_letters) for good: their events will not be
-- handled by their consumers. One row of the audit a letter, which says what it was. Tells workers on the channel (NULL:
-- none). Gives how many there were.
--   55P03  a batch does not end (hold_parts)
CREATE OR REPLACE FUNCTION {{fn:drop_letters}}(filter jsonb, who text, why text, channel text)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    part text;
    parts text[] := ARRAY(SELECT DISTINCT f.consumer_name FROM {{fn:find_letters}}(filter) AS f ORDER BY 1);
    dropped bigint;
    total bigint := 0;
BEGIN
    PERFORM {{fn:hold_parts}}(parts);
    FOREACH part IN ARRAY parts LOOP
        WITH gone AS (
            DELETE FROM {{consumer_dead_letters}} AS l USING {{fn:find_letters}}(filter) AS f
                WHERE f.id = l.id AND l.consumer_name = part RETURNING l.*)
            INSERT INTO {{consumer_audit}} (consumer_name, action, actor, reason, detail)
                SELECT part, 'drop', who, why, jsonb_build_object('position', g.global_position, 'state', g.state,
                    'aggregate_type', g.aggregate_type, 'aggregate_id', g.aggregate_id, 'event_type', g.event_type,
                    'error', g.error, 'sqlstate', g.sqlstate, 'attempts', g.attempts, 'failed_at', g.created_at)
                FROM gone AS g ORDER BY g.global_position;
        GET DIAGNOSTICS dropped = ROW_COUNT;
        CONTINUE WHEN dropped = 0;
        total := total + dropped;
        PERFORM {{fn:touch_controls}}(part);
    END LOOP;
    IF channel IS NOT NULL AND total > 0 THEN
        PERFORM pg_catalog.pg_notify(channel, '');
    END IF;
    RETURN total;
END
$mr$;
