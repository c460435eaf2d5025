-- hold_consumer(consumer): the parts that a consumer's name means (consumer_parts), each held (hold_parts).
--   MR007  nobody has a consumer of this name
CREATE OR REPLACE FUNCTION {{fn:hold_consumer}}(consumer text)
RETURNS text[] LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    parts text[] := ARRAY(SELECT {{fn:consumer_parts}}(consumer));
BEGIN
    IF parts = '{}' THEN
        RAISE EXCEPTION 'there is no consumer %; see: millrace consumers list', consumer USING ERRCODE = 'MR007';
    END IF;
    PERFORM {{fn:hold_parts}}(parts);
    RETURN parts;
END
$mr$;
