-- key_bucket(key, buckets): the bucket of a key, 0 to buckets - 1. A key's jobs stay together because of it, so the
-- number of buckets is fixed when the schema is made.
CREATE OR REPLACE FUNCTION {{fn:key_bucket}}(key text, buckets integer)
RETURNS integer LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $mr$
    SELECT ({{fn:hash_key}}(key) % buckets)::integer
$mr$;
