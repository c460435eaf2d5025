-- job_lock(queue, what): the key of an advisory lock in this fleet's jobs. `what` is 'k' and a partition key, 'b' and a
-- bucket, or a word. Two that collide only wait for each other now and then; nothing else rests on them being different.
CREATE OR REPLACE FUNCTION {{fn:job_lock}}(queue text, what text)
RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS $mr$
    SELECT pg_catalog.hashtextextended($2, pg_catalog.hashtextextended($1, {{rellit:jobs:turns}}::pg_catalog.regclass::oid::bigint))
$mr$;
