-- hash_key(key): FNV-1a 32 of the key's bytes in UTF-8, 0 to 4294967295; "a" gives e40c292c, "foobar" bf9cf968.
-- The server's own hashtext() is no contract: it has changed between versions. This one is stored with jobs and
-- never changes; the library computes the same.
-- A loop is the fastest plain way: several bytes a turn gain nothing on keys as they are, and a recursive query is
-- five times slower.
CREATE OR REPLACE FUNCTION {{fn:hash_key}}(key text)
RETURNS bigint LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $mr$
DECLARE
    bytes bytea := pg_catalog.convert_to(key, 'UTF8');
    h bigint := 2166136261;
BEGIN
    FOR i IN 0 .. pg_catalog.length(bytes) - 1 LOOP
        h := ((h # pg_catalog.get_byte(bytes, i)) * 16777619) & 4294967295;
    END LOOP;
    RETURN h;
END
$mr$;
