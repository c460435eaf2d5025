-- sweep_keys(after, most): looks at `most` keys that have jobs behind each other, from the one after `after` on (queue and key), and
-- promotes where nobody did: a worker died between an outcome and the promotion, or somebody deleted a row by hand. Gives where to go
-- on, NULL at the end, and how many keys were asked about.
CREATE OR REPLACE FUNCTION {{fn:sweep_keys}}(INOUT after text[], most integer, OUT stuck integer)
LANGUAGE plpgsql VOLATILE
-- The plan must not change with what the planner thinks of the table just now.
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $mr$
DECLARE
    seen record;
BEGIN
    stuck := 0;
    FOR i IN 1 .. most LOOP
        SELECT j.queue, j.partition_key INTO seen FROM {{jobs}} AS j
            WHERE j.ordered AND j.standing = 'blocked'
                AND (j.queue, j.partition_key) > (coalesce(after[1], ''), coalesce(after[2], ''))
            ORDER BY j.queue, j.partition_key, j.turn LIMIT 1;
        IF NOT FOUND THEN
            after := NULL;
            RETURN;
        END IF;
        after := ARRAY[seen.queue, seen.partition_key];
        IF NOT EXISTS (SELECT FROM {{jobs}} AS a WHERE a.queue = seen.queue AND a.partition_key = seen.partition_key
            AND a.ordered AND a.standing IN ('ready', 'waiting', 'held')) THEN
            stuck := stuck + 1;
            PERFORM {{fn:promote_keys}}(seen.queue, ARRAY[seen.partition_key]);
        END IF;
    END LOOP;
END
$mr$;
