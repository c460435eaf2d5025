-- archive_days(keep): the archive's partitions for today and the next two days are there, and those whose last day ended more
-- than `keep` ago are dropped. Gives the names of what was made and dropped. A role that may not do that leaves it to others:
-- what has no day of its own goes to the default partition.
CREATE OR REPLACE FUNCTION {{fn:archive_days}}(keep interval)
RETURNS SETOF text LANGUAGE plpgsql VOLATILE
SET lock_timeout = '2s' SET timezone = 'UTC' AS $mr$
DECLARE
    parent CONSTANT regclass := {{tablelit:jobs_archive}};
    place name;
    stem name;
    day date;
    part record;
BEGIN
    SELECT n.nspname, c.relname INTO place, stem FROM pg_catalog.pg_class AS c
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = parent;
    FOR day IN SELECT d::date FROM pg_catalog.generate_series(pg_catalog.now(), pg_catalog.now() + interval '2 days',
            interval '1 day') AS d LOOP
        CONTINUE WHEN pg_catalog.to_regclass(pg_catalog.format('%I.%I', place,
            pg_catalog.left(stem, 50) || pg_catalog.to_char(day, '_YYYYMMDD'))) IS NOT NULL;
        BEGIN
            EXECUTE pg_catalog.format('CREATE TABLE %I.%I PARTITION OF %s FOR VALUES FROM (%L) TO (%L)', place,
                pg_catalog.left(stem, 50) || pg_catalog.to_char(day, '_YYYYMMDD'), parent, day, day + 1);
            RETURN NEXT '+' || pg_catalog.to_char(day, 'YYYY-MM-DD');
        EXCEPTION
            -- Others do it, or are in the way just now, or the default partition has rows of that day already.
            WHEN insufficient_privilege OR lock_not_available OR check_violation OR duplicate_table OR unique_violation THEN
                NULL;
        END;
    END LOOP;
    FOR part IN
        SELECT c.oid::regclass AS name, c.relname, pg_catalog.to_date(pg_catalog.right(c.relname, 8), 'YYYYMMDD') AS day
        FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = parent AND c.relname ~ '_[0-9]{8}$'
    LOOP
        CONTINUE WHEN part.day + 1 > pg_catalog.now() - keep;
        BEGIN
            EXECUTE pg_catalog.format('DROP TABLE %s', part.name);
            RETURN NEXT '-' || pg_catalog.to_char(part.day, 'YYYY-MM-DD');
        EXCEPTION WHEN insufficient_privilege OR lock_not_available THEN
            NULL;
        END;
    END LOOP;
END
$mr$;
