-- publish(new_position): tells readers of the `published` strategy that every position up to this one is decided.
-- Called by the appender after its commit. Never lowers the published position; returns the one in force.
CREATE OR REPLACE FUNCTION {{fn:publish}}(new_position bigint)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    in_force bigint;
BEGIN
    UPDATE {{log_published}} AS p
        SET position = new_position, updated_at = pg_catalog.now()
        WHERE p.position < new_position
        RETURNING p.position INTO in_force;
    IF in_force IS NULL THEN
        SELECT p.position INTO in_force FROM {{log_published}} AS p;
    END IF;
    RETURN in_force;
END
$mr$;
