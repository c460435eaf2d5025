-- known_queues(): the names of the queues that live in the jobs table: those that workers or people have said something about, and those
-- that have jobs. One step down an index a name, however many jobs there are.
CREATE OR REPLACE FUNCTION {{fn:known_queues}}()
RETURNS SETOF text LANGUAGE plpgsql STABLE
-- The plan must not change with what the planner thinks of the table just now. What is off counts as dear where there is no other way
-- (a table of one row), and a dear plan would be compiled, which takes longer than all the rest.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $mr$
BEGIN
    RETURN QUERY
        WITH RECURSIVE
        ready(name) AS (
            SELECT min(j.queue) FROM {{jobs}} AS j WHERE j.standing = 'ready'
            UNION ALL SELECT (SELECT min(j.queue) FROM {{jobs}} AS j WHERE j.standing = 'ready' AND j.queue > r.name)
                FROM ready AS r WHERE r.name IS NOT NULL),
        due(name) AS (
            SELECT min(j.queue) FROM {{jobs}} AS j WHERE j.standing IN ('later', 'waiting')
            UNION ALL SELECT (SELECT min(j.queue) FROM {{jobs}} AS j WHERE j.standing IN ('later', 'waiting') AND j.queue > r.name)
                FROM due AS r WHERE r.name IS NOT NULL),
        blocked(name) AS (
            SELECT min(j.queue) FROM {{jobs}} AS j WHERE j.ordered AND j.standing = 'blocked'
            UNION ALL SELECT (SELECT min(j.queue) FROM {{jobs}} AS j WHERE j.ordered AND j.standing = 'blocked' AND j.queue > r.name)
                FROM blocked AS r WHERE r.name IS NOT NULL),
        failed(name) AS (
            SELECT min(j.queue) FROM {{jobs}} AS j WHERE (j.standing IS NULL OR j.standing = 'held')
            UNION ALL SELECT (SELECT min(j.queue) FROM {{jobs}} AS j WHERE (j.standing IS NULL OR j.standing = 'held') AND j.queue > r.name)
                FROM failed AS r WHERE r.name IS NOT NULL)
        SELECT n.name FROM (
            SELECT c.queue FROM {{queue_controls}} AS c UNION SELECT r.name FROM ready AS r UNION SELECT d.name FROM due AS d
            UNION SELECT b.name FROM blocked AS b UNION SELECT f.name FROM failed AS f) AS n(name)
        WHERE n.name IS NOT NULL ORDER BY 1;
END
$mr$;
