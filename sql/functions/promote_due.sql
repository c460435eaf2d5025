-- promote_due(queue, most): jobs whose time has come go into line, at its end. One that has a key comes behind those of
-- its key that are there already; one that waited for its next try has kept its place. Rows that somebody has locked are left
-- for the next call, and so are jobs of keys that a producer holds just now; beyond 100 keys, too: each takes a lock on the
-- server for a moment. Gives how many there were.
CREATE OR REPLACE FUNCTION {{fn:promote_due}}(queue text, most integer)
RETURNS integer LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    buckets integer := (SELECT s.buckets FROM {{job_settings}} AS s);
    keys text[];
    total integer;
BEGIN
    IF NOT EXISTS (SELECT FROM {{jobs}} AS j WHERE j.queue = $1 AND j.standing IN ('later', 'waiting')
        AND j.run_at <= pg_catalog.clock_timestamp()) THEN
        RETURN 0; -- nearly always
    END IF;
    WITH due AS MATERIALIZED (
        SELECT j.id, CASE WHEN j.ordered AND j.standing = 'later' THEN j.partition_key END AS key FROM {{jobs}} AS j
        WHERE j.queue = $1 AND j.standing IN ('later', 'waiting') AND j.run_at <= pg_catalog.clock_timestamp()
        ORDER BY j.run_at LIMIT most FOR NO KEY UPDATE SKIP LOCKED),
    counted AS MATERIALIZED (
        SELECT d.id, d.key, pg_catalog.row_number() OVER (PARTITION BY d.key IS NULL) AS place FROM due AS d),
    free AS MATERIALIZED (
        SELECT c.id FROM counted AS c WHERE CASE WHEN c.key IS NULL THEN true WHEN c.place > 100 THEN false
            WHEN pg_catalog.pg_try_advisory_xact_lock_shared({{fn:job_lock}}($1, 'b' || {{fn:key_bucket}}(c.key, buckets)))
                THEN pg_catalog.pg_try_advisory_xact_lock({{fn:job_lock}}($1, 'k' || c.key))
            ELSE false END),
    moved AS (
        UPDATE {{jobs}} AS j SET standing = CASE WHEN j.ordered AND j.standing = 'later' THEN 'blocked' ELSE 'ready' END,
            turn = pg_catalog.nextval({{rellit:jobs:turns}})
        WHERE j.id = ANY (ARRAY(SELECT f.id FROM free AS f)) RETURNING j.standing, j.partition_key)
    SELECT pg_catalog.count(*), pg_catalog.array_agg(m.partition_key) FILTER (WHERE m.standing = 'blocked')
        INTO total, keys FROM moved AS m;
    IF keys IS NOT NULL THEN
        PERFORM {{fn:promote_keys}}(queue, keys);
    END IF;
    RETURN total;
END
$mr$;
