-- next_marks(marks, cut, levels, turns): where the next look for jobs may start, for each priority from 0 on, after jobs of these
-- priorities and turns were taken. A little behind the last: what was numbered before it may be committed after it.
-- `cut`: a look from the beginning ended early, because it had enough: what it did not come to is not known.
CREATE OR REPLACE FUNCTION {{fn:next_marks}}(marks bigint[], cut boolean, levels smallint[], turns bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $mr$
DECLARE
    result bigint[] := coalesce(marks, '{0,0,0,0,0,0,0,0,0,0}');
    got record;
    last integer := -1;
BEGIN
    FOR got IN
        SELECT g.level, max(g.turn) - 64 AS turn FROM unnest(levels, turns) AS g(level, turn) GROUP BY g.level ORDER BY 1
    LOOP
        -- The last one may have been left in the middle.
        IF cut AND last >= 0 THEN
            result[last + 1] := greatest(result[last + 1], marks[last + 1]);
        END IF;
        last := got.level;
        result[last + 1] := CASE WHEN cut THEN greatest(got.turn, 0) ELSE greatest(result[last + 1], got.turn) END;
    END LOOP;
    IF cut THEN
        FOR later IN last + 1 .. 9 LOOP
            result[later + 1] := 0;
        END LOOP;
    END IF;
    RETURN result;
END
$mr$;
