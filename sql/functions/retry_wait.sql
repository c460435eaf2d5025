-- retry_wait(failures, base, most): how long a job waits after so many failures: base, doubled each time, at most `most`, of which
-- between half and all, so that jobs which failed together do not come back together.
CREATE OR REPLACE FUNCTION {{fn:retry_wait}}(failures integer, base interval, most interval)
RETURNS interval LANGUAGE sql VOLATILE AS $mr$
    SELECT least($3, $2 * pg_catalog.power(2, least(greatest($1, 1) - 1, 30))) * (0.5 + pg_catalog.random() / 2)
$mr$;
