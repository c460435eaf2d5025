-- request_replay(filter, who, channel): asks the owners of these dead letters (find_letters) to run their handlers on
-- them again. An owner takes rows with replay_at set in the order of their positions and removes each in the handler's
-- own transaction, or notes the new error and clears replay_at. One row of the audit a consumer, with the positions.
-- Tells workers on the channel (NULL: none). Gives the ids of the letters.
--   55P03  a batch does not end (hold_parts)
CREATE OR REPLACE FUNCTION {{fn:request_replay}}(filter jsonb, who text, channel text)
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    part text;
    parts text[] := ARRAY(SELECT DISTINCT f.consumer_name FROM {{fn:find_letters}}(filter) AS f ORDER BY 1);
    marked bigint[];
    positions jsonb;
    all_ids bigint[] := '{}';
BEGIN
    PERFORM {{fn:hold_parts}}(parts);
    FOREACH part IN ARRAY parts LOOP
        WITH asked AS (
            UPDATE {{consumer_dead_letters}} AS l SET replay_at = pg_catalog.clock_timestamp(), replay_by = who
                FROM {{fn:find_letters}}(filter) AS f WHERE f.id = l.id AND l.consumer_name = part
                RETURNING l.id, l.global_position)
            SELECT array_agg(a.id), jsonb_agg(a.global_position ORDER BY a.global_position)
                INTO marked, positions FROM asked AS a;
        CONTINUE WHEN marked IS NULL;
        all_ids := all_ids || marked;
        PERFORM {{fn:touch_controls}}(part);
        INSERT INTO {{consumer_audit}} (consumer_name, action, actor, detail)
            VALUES (part, 'replay', who,
                jsonb_build_object('letters', cardinality(marked), 'positions', positions));
    END LOOP;
    IF channel IS NOT NULL AND all_ids <> '{}' THEN
        PERFORM pg_catalog.pg_notify(channel, '');
    END IF;
    RETURN all_ids;
END
$mr$;
