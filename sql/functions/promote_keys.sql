-- promote_keys(queue, keys): the next job of each key comes into line, if the key has none that is ready, waits for its
-- next try, runs or is held. Called after a job of the key is over and that is committed.
-- A producer that saw that job open may not have committed yet: it holds the key's lock. Such a key is left alone and given
-- back, to be asked about again; so is one whose next row somebody has locked. Never waits.
CREATE OR REPLACE FUNCTION {{fn:promote_keys}}(queue text, keys text[])
RETURNS SETOF text LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    buckets integer := (SELECT s.buckets FROM {{job_settings}} AS s);
    mine text[] := '{}';
    nexts bigint[];
    free bigint[];
    k text;
BEGIN
    FOR k IN SELECT DISTINCT u FROM unnest(keys) AS u ORDER BY 1 LOOP
        IF pg_catalog.pg_try_advisory_xact_lock_shared({{fn:job_lock}}(queue, 'b' || {{fn:key_bucket}}(k, buckets)))
            AND pg_catalog.pg_try_advisory_xact_lock({{fn:job_lock}}(queue, 'k' || k)) THEN
            mine := mine || k;
        ELSE
            RETURN NEXT k;
        END IF;
    END LOOP;
    -- A statement of its own: it must see what was committed before the locks were had.
    nexts := ARRAY(
            SELECT (SELECT b.id FROM {{jobs}} AS b WHERE b.queue = $1 AND b.partition_key = m.k AND b.ordered
                    AND b.standing = 'blocked' ORDER BY b.turn LIMIT 1)
            FROM unnest(mine) AS m(k)
            WHERE NOT EXISTS (SELECT FROM {{jobs}} AS a WHERE a.queue = $1 AND a.partition_key = m.k AND a.ordered
                AND a.standing IN ('ready', 'waiting', 'held')));
    free := ARRAY(SELECT j.id FROM {{jobs}} AS j WHERE j.id = ANY (nexts) AND j.standing = 'blocked'
        ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED);
    UPDATE {{jobs}} AS j SET standing = 'ready', turn = pg_catalog.nextval({{rellit:jobs:turns}}),
            last_heartbeat_at = pg_catalog.clock_timestamp() -- since when it is in line
        WHERE j.id = ANY (free);
    RETURN QUERY SELECT j.partition_key FROM {{jobs}} AS j
        WHERE j.id = ANY (nexts) AND j.id <> ALL (free) AND j.standing = 'blocked';
END
$mr$;
