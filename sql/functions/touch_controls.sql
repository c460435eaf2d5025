-- touch_controls(part): raises the epoch of a consumer's controls, whose row it makes when there is none: a batch that
-- knows the old epoch cannot commit any more. The part must be held (hold_parts).
CREATE OR REPLACE FUNCTION {{fn:touch_controls}}(part text)
RETURNS void LANGUAGE sql VOLATILE AS $mr$
    INSERT INTO {{consumer_controls}} AS k (consumer_name, epoch) VALUES (part, 1)
        ON CONFLICT (consumer_name) DO UPDATE SET epoch = k.epoch + 1, updated_at = pg_catalog.clock_timestamp()
$mr$;
