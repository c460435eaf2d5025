-- archive_job(job): writes a job that is over into the archive. The caller deletes its row.
CREATE OR REPLACE FUNCTION {{fn:archive_job}}(job {{jobs}})
RETURNS void LANGUAGE sql VOLATILE AS $mr$
    INSERT INTO {{jobs_archive}} (id, queue, state, priority, partition_key, partition_bucket, payload, metadata,
        idempotency_key, queued_at, run_at, num_failures, num_resets, failure_message, errors, started_at,
        finished_at, worker_hostname, lease_generation, execution_logs)
    VALUES (job.id, job.queue, job.state, job.priority, job.partition_key, job.partition_bucket, job.payload, job.metadata,
        job.idempotency_key, job.queued_at, job.run_at, job.num_failures, job.num_resets, job.failure_message, job.errors,
        job.started_at, coalesce(job.finished_at, pg_catalog.clock_timestamp()), job.worker_hostname, job.lease_generation,
        job.execution_logs)
$mr$;
