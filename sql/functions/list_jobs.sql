-- list_jobs(queue, filter, lease): jobs for people, those in the archive among them, the highest ids first; 50 unless the filter has a limit.
-- Filters: find_jobs. Without a queue, jobs of all of them.
--   stalled   running, but without a sign of life for `lease`, or claimed by a worker that is gone
CREATE OR REPLACE FUNCTION {{fn:list_jobs}}(queue text, filter jsonb DEFAULT '{}', lease interval DEFAULT '90 s')
RETURNS TABLE (id bigint, queue_name text, state text, queued_at timestamptz, started_at timestamptz, finished_at timestamptz,
    process_after timestamptz, num_failures integer, num_resets integer, worker text, last_heartbeat_at timestamptz,
    failure_message text, stalled boolean, cancel boolean, key text, priority smallint, standing text, progress smallint,
    progress_text text, archived boolean) LANGUAGE plpgsql STABLE AS $mr$
DECLARE
    most bigint := coalesce((filter->>'limit')::bigint, 50);
BEGIN
    filter := filter || pg_catalog.jsonb_build_object('limit', most);
    RETURN QUERY SELECT a.* FROM (
        SELECT j.id, j.queue, j.state, j.queued_at, j.started_at, j.finished_at, j.run_at, j.num_failures, j.num_resets,
            j.worker_hostname, CASE WHEN j.state = 'processing' THEN j.last_heartbeat_at END, j.failure_message,
            coalesce(j.state = 'processing' AND (j.last_heartbeat_at < pg_catalog.clock_timestamp() - lease
                OR NOT EXISTS (SELECT FROM {{worker_nodes}} AS w
                    WHERE w.worker_id::text = pg_catalog.right(j.worker_hostname, 36) AND w.state <> 'dead')), false),
            j.cancel, j.partition_key, j.priority,
            CASE WHEN j.state = 'processing' THEN 'running' ELSE j.standing END, j.progress, j.progress_text, false
        FROM {{jobs}} AS j
        WHERE j.id = ANY (ARRAY(SELECT f.id FROM {{fn:find_jobs}}($1, filter, NULL, true) AS f))
        UNION ALL
        SELECT o.id, o.queue, o.state, o.queued_at, o.started_at, o.finished_at, o.run_at, o.num_failures, o.num_resets,
            o.worker_hostname, NULL, o.failure_message, false, false, o.partition_key, o.priority, NULL, NULL, NULL, true
        FROM {{fn:find_archived}}($1, filter, most) AS o) AS a(id) ORDER BY a.id DESC LIMIT most;
END
$mr$;
