-- note_error(errors, attempt, message, worker): a job's history of errors with one more; the last 20 are kept.
CREATE OR REPLACE FUNCTION {{fn:note_error}}(errors jsonb, attempt integer, message text, worker text)
RETURNS jsonb LANGUAGE sql VOLATILE AS $mr$
    SELECT (CASE WHEN pg_catalog.jsonb_array_length($1) >= 20 THEN $1 - 0 ELSE coalesce($1, '[]') END)
        || pg_catalog.jsonb_build_object('at', pg_catalog.clock_timestamp(), 'attempt', $2, 'error', pg_catalog.left($3, 2000),
            'worker', $4)
$mr$;
