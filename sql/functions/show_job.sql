-- show_job(queue, id, lease): everything about one job, as list_jobs has it and more; no row when the queue has none of that id.
CREATE OR REPLACE FUNCTION {{fn:show_job}}(queue text, job_id bigint, lease interval DEFAULT '90 s')
RETURNS TABLE (id bigint, queue_name text, state text, place text, queued_at timestamptz, started_at timestamptz,
    finished_at timestamptz, process_after timestamptz, num_failures integer, num_resets integer, worker text,
    last_heartbeat_at timestamptz, failure_message text, stalled boolean, cancel boolean, key text, bucket integer,
    priority smallint, progress smallint, progress_text text, idempotency_key text, max_attempts integer, timeout interval,
    lease_generation bigint, metadata jsonb, errors jsonb, execution_logs json, "values" jsonb) LANGUAGE plpgsql STABLE AS $mr$
DECLARE
    filter jsonb := pg_catalog.jsonb_build_object('ids', ARRAY[job_id]);
BEGIN
    RETURN QUERY
        WITH listed AS MATERIALIZED (SELECT l.* FROM {{fn:list_jobs}}(queue, filter, lease) AS l)
        SELECT l.id, l.queue_name, l.state, {{fn:job_place}}(j), l.queued_at, l.started_at, l.finished_at, l.process_after,
            l.num_failures, l.num_resets, l.worker, l.last_heartbeat_at, l.failure_message, l.stalled, l.cancel, l.key,
            j.partition_bucket, l.priority, l.progress, l.progress_text, j.idempotency_key, j.max_attempts, j.timeout,
            j.lease_generation, j.metadata, coalesce(j.errors, '[]'),
            coalesce(pg_catalog.to_json(j.execution_logs), '[]'), pg_catalog.jsonb_build_object('payload', j.payload)
        FROM listed AS l JOIN {{jobs}} AS j ON j.id = l.id WHERE NOT l.archived
        UNION ALL
        SELECT l.id, l.queue_name, l.state, 'over, and in the archive', l.queued_at, l.started_at, l.finished_at, l.process_after,
            l.num_failures, l.num_resets, l.worker, NULL, l.failure_message, false, false, l.key, o.partition_bucket, l.priority,
            NULL, NULL, o.idempotency_key, NULL, NULL, o.lease_generation, o.metadata, coalesce(o.errors, '[]'),
            coalesce(pg_catalog.to_json(o.execution_logs), '[]'), pg_catalog.jsonb_build_object('payload', o.payload)
        FROM listed AS l, {{fn:find_archived}}(queue, filter, 1) AS o WHERE l.archived;
END
$mr$;
