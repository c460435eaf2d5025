-- refuse_job(action, job, lease): why an action does not fit a job as it stands; NULL when it does.
CREATE OR REPLACE FUNCTION {{fn:refuse_job}}(action text, job {{jobs}}, lease interval)
RETURNS text LANGUAGE sql STABLE AS $mr$
    SELECT CASE action
        WHEN 'retry' THEN CASE
            WHEN job.state = 'processing' THEN 'it is running; wait for its end, or cancel it first'
            WHEN job.state = 'failed' OR job.standing = 'waiting' AND job.state = 'errored' THEN NULL
            WHEN job.standing = 'ready' THEN 'it is in line already'
            WHEN job.standing = 'blocked' THEN 'it is in line already, behind another job of its key'
            ELSE 'it is queued already, due ' || coalesce(job.run_at::text, 'at once') END
        WHEN 'requeue' THEN CASE
            WHEN job.state = 'processing' AND job.last_heartbeat_at >= pg_catalog.clock_timestamp() - lease
                AND EXISTS (SELECT FROM {{worker_nodes}} AS w
                    WHERE w.worker_id::text = pg_catalog.right(job.worker_hostname, 36) AND w.state <> 'dead')
                THEN 'it is running; wait for its end, or cancel it first' END
        WHEN 'cancel' THEN CASE
            WHEN job.state = 'processing' AND job.cancel THEN 'its worker was asked already'
            WHEN job.state = 'failed' AND job.standing IS NULL THEN 'it has failed; drop removes it from the dead letters' END
        WHEN 'drop' THEN CASE
            WHEN job.state = 'processing' THEN 'it is running; wait for its end, or cancel it first' END
        ELSE 'there is no such action' END
$mr$;
