-- set_progress(ids, fences, percents, texts): how far claimed jobs are, each under its own fence; NULL leaves the one or the other as it was.
-- A claim that has moved on is left alone, and so is a row that somebody has locked: progress is for people, and waits for nobody.
CREATE OR REPLACE FUNCTION {{fn:set_progress}}(ids bigint[], fences bigint[], percents integer[], texts text[])
RETURNS integer LANGUAGE plpgsql VOLATILE
-- The plan must not change with what the planner thinks of the table just now. What is off counts as dear where there is no other way
-- (a table of one row), and a dear plan would be compiled, which takes longer than all the rest.
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET jit = off AS $mr$
DECLARE
    mine bigint[];
    total integer;
BEGIN
    mine := ARRAY(SELECT j.id FROM unnest(ids, fences) AS g(id, fence) JOIN {{jobs}} AS j ON j.id = g.id
        WHERE j.id = ANY (ids) AND j.state = 'processing' AND j.lease_generation = g.fence
        ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED);
    UPDATE {{jobs}} AS j SET progress = coalesce(greatest(0, least(g.percent, 100))::smallint, j.progress),
            progress_text = coalesce(pg_catalog.left(g.told, 500), j.progress_text)
        FROM unnest(ids, percents, texts) AS g(id, percent, told) WHERE j.id = ANY (mine) AND j.id = g.id;
    GET DIAGNOSTICS total = ROW_COUNT;
    RETURN total;
END
$mr$;
