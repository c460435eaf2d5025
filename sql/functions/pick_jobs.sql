-- pick_jobs(...): the first jobs in line, locked for the caller's transaction; none that another session has locked. Gives
-- where they lie, and the id, turn and priority of each, in line. Those that are claimed are still there, and passed over.
--   marks   for each priority from 0 on, the turn below which nothing is looked for; NULL: from the beginning
--   owned   buckets whose keys are this worker's own: they are preferred among the next `span` jobs in line. Others' are taken
--           only when there are more jobs in line than that (their owners are behind) or when they have stood there for
--           `patience`. NULL: everything is alike
CREATE OR REPLACE FUNCTION {{fn:pick_jobs}}(
    queue text, most integer, marks bigint[], owned integer[], span integer, patience interval,
    OUT places tid[], OUT ids bigint[], OUT turns bigint[], OUT levels smallint[])
LANGUAGE plpgsql VOLATILE
-- The plan must not change with what the planner thinks of the table just now.
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $mr$
DECLARE
    own bigint[];
    others bigint[];
BEGIN
    IF owned IS NULL THEN
        SELECT pg_catalog.array_agg(r.ctid), pg_catalog.array_agg(r.id), pg_catalog.array_agg(r.turn), pg_catalog.array_agg(r.priority)
            INTO places, ids, turns, levels
            FROM (SELECT r.* FROM pg_catalog.generate_series(0, 9) AS l(level) CROSS JOIN LATERAL (
                    SELECT j.ctid, j.id, j.turn, j.priority FROM {{jobs}} AS j
                    WHERE j.queue = $1 AND j.standing = 'ready' AND j.state <> 'processing' AND j.priority = l.level::smallint
                        AND j.turn > coalesce(marks[l.level + 1], 0)
                    ORDER BY j.turn LIMIT most FOR NO KEY UPDATE SKIP LOCKED) AS r
                LIMIT most) AS r;
        RETURN;
    END IF;
    WITH line AS MATERIALIZED (
        SELECT r.*, pg_catalog.row_number() OVER () AS place
        FROM pg_catalog.generate_series(0, 9) AS l(level) CROSS JOIN LATERAL (
            SELECT j.id, j.partition_bucket, greatest(j.queued_at, j.run_at, j.last_heartbeat_at) AS since FROM {{jobs}} AS j
            WHERE j.queue = $1 AND j.standing = 'ready' AND j.state <> 'processing' AND j.priority = l.level::smallint
                AND j.turn > coalesce(marks[l.level + 1], 0)
            ORDER BY j.turn LIMIT span) AS r
        LIMIT span),
    ranked AS (
        SELECT l.id, l.place, l.partition_bucket IS NULL OR l.partition_bucket = ANY (owned) AS mine,
            (SELECT pg_catalog.count(*) FROM line) >= span
                OR l.since < pg_catalog.clock_timestamp() - patience AS left_over
        FROM line AS l)
    SELECT pg_catalog.array_agg(r.id ORDER BY r.place) FILTER (WHERE r.mine),
            pg_catalog.array_agg(r.id ORDER BY r.place) FILTER (WHERE NOT r.mine AND r.left_over)
        INTO own, others FROM ranked AS r;
    -- Locked by their ids, and looked at once more: the line was read without locks. Own ones first.
    SELECT pg_catalog.array_agg(r.ctid), pg_catalog.array_agg(r.id), pg_catalog.array_agg(r.turn), pg_catalog.array_agg(r.priority)
        INTO places, ids, turns, levels
        FROM (SELECT j.ctid, j.id, j.turn, j.priority FROM {{jobs}} AS j WHERE j.id = ANY (own) AND j.standing = 'ready' AND j.state <> 'processing'
            ORDER BY j.priority, j.turn LIMIT most FOR NO KEY UPDATE SKIP LOCKED) AS r;
    IF coalesce(pg_catalog.cardinality(places), 0) >= most OR others IS NULL THEN
        RETURN;
    END IF;
    SELECT places || pg_catalog.array_agg(r.ctid), ids || pg_catalog.array_agg(r.id), turns || pg_catalog.array_agg(r.turn),
            levels || pg_catalog.array_agg(r.priority)
        INTO places, ids, turns, levels
        FROM (SELECT j.ctid, j.id, j.turn, j.priority FROM {{jobs}} AS j WHERE j.id = ANY (others) AND j.standing = 'ready' AND j.state <> 'processing'
            ORDER BY j.priority, j.turn LIMIT most - coalesce(pg_catalog.cardinality(places), 0)
            FOR NO KEY UPDATE SKIP LOCKED) AS r;
END
$mr$;
