-- queue_figures(queue, most, lease): how a queue of the jobs table stands, at a cost that does not grow with what has piled up: of each
-- standing (see the table) `most` jobs are counted. `rough` tells which numbers are "at least" that.
--   oldest_wait_seconds   how long the first in line, or the first that is due, has been waiting
--   stalled               running, but without a sign of life for `lease`, or claimed by a worker that is gone
CREATE OR REPLACE FUNCTION {{fn:queue_figures}}(queue text, most integer DEFAULT 10000, lease interval DEFAULT '90 s')
RETURNS TABLE (queued bigint, errored bigint, processing bigint, failed bigint, stalled bigint, ready bigint, blocked bigint,
    later bigint, waiting bigint, held bigint, oldest_wait_seconds numeric, rough jsonb)
LANGUAGE plpgsql STABLE
-- The plan must not change with what the planner thinks of the table just now. What is off counts as dear where there is no other way
-- (a table of one row), and a dear plan would be compiled, which takes longer than all the rest.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $mr$
DECLARE
    right_now timestamptz := pg_catalog.clock_timestamp();
    since timestamptz;
BEGIN
    SELECT count(*), count(*) FILTER (WHERE r.state = 'errored') INTO ready, errored FROM (
        SELECT j.state FROM {{jobs}} AS j
        WHERE j.queue = $1 AND j.standing = 'ready' AND j.state <> 'processing' LIMIT most + 1) AS r;
    SELECT count(*) INTO blocked FROM (SELECT FROM {{jobs}} AS j
        WHERE j.queue = $1 AND j.ordered AND j.standing = 'blocked' LIMIT most + 1) AS r;
    SELECT count(*) FILTER (WHERE r.standing = 'later'), count(*) FILTER (WHERE r.standing = 'waiting'),
            errored + count(*) FILTER (WHERE r.state = 'errored') INTO later, waiting, errored
        FROM (SELECT j.standing, j.state FROM {{jobs}} AS j
            WHERE j.queue = $1 AND j.standing IN ('later', 'waiting') LIMIT most + 1) AS r;
    SELECT count(*), count(*) FILTER (WHERE r.last_heartbeat_at < right_now - lease OR NOT EXISTS (
            SELECT FROM {{worker_nodes}} AS w WHERE w.worker_id::text = pg_catalog.right(r.worker_hostname, 36) AND w.state <> 'dead'))
        INTO processing, stalled FROM (SELECT j.last_heartbeat_at, j.worker_hostname
            FROM {{job_claims}} AS c CROSS JOIN LATERAL unnest(c.ids) AS u(id) JOIN {{jobs}} AS j ON j.id = u.id
            WHERE c.queue = $1 AND j.state = 'processing' AND j.lease_generation = c.fence LIMIT most + 1) AS r;
    SELECT count(*), count(*) FILTER (WHERE r.standing = 'held') INTO failed, held FROM (
        SELECT j.standing FROM {{jobs}} AS j WHERE j.queue = $1 AND (j.standing IS NULL OR j.standing = 'held') LIMIT most + 1) AS r;
    queued := ready + blocked + later + waiting - errored;
    rough := pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object(
        'queued', CASE WHEN greatest(ready, blocked, later + waiting) > most THEN 'at least' END,
        'errored', CASE WHEN greatest(ready, later + waiting) > most THEN 'at least' END,
        'processing', CASE WHEN processing > most THEN 'at least' END,
        'stalled', CASE WHEN processing > most THEN 'at least' END,
        'failed', CASE WHEN failed > most THEN 'at least' END,
        'held', CASE WHEN failed > most THEN 'at least' END,
        'ready', CASE WHEN ready > most THEN 'at least' END,
        'blocked', CASE WHEN blocked > most THEN 'at least' END,
        'later', CASE WHEN later + waiting > most THEN 'at least' END,
        'waiting', CASE WHEN later + waiting > most THEN 'at least' END));
    -- The first in line of each priority; and what has come due and is not in line yet.
    SELECT min(f.since) INTO since FROM pg_catalog.generate_series(0, 9) AS l(level) CROSS JOIN LATERAL (
        SELECT coalesce(greatest(j.queued_at, j.run_at), j.queued_at) AS since FROM {{jobs}} AS j
        WHERE j.queue = $1 AND j.standing = 'ready' AND j.state <> 'processing' AND j.priority = l.level::smallint ORDER BY j.turn LIMIT 1) AS f;
    since := least(since, (SELECT j.run_at FROM {{jobs}} AS j WHERE j.queue = $1 AND j.standing IN ('later', 'waiting')
        AND j.run_at <= right_now ORDER BY j.run_at LIMIT 1));
    oldest_wait_seconds := round(greatest(coalesce(extract(epoch FROM right_now - since), 0), 0)::numeric, 1);
    RETURN NEXT;
END
$mr$;
