-- Millrace's own jobs: the table, its archive, what producers and people say about queues.

-- Places in line and fences come from sequences: they only grow, also over roll-backs and restarts.
CREATE SEQUENCE IF NOT EXISTS {{rel:jobs:turns}};
CREATE SEQUENCE IF NOT EXISTS {{rel:jobs:generations}};

-- How many buckets keys are hashed to. Fixed once there are jobs: another number would put a key's jobs into two.
CREATE TABLE IF NOT EXISTS {{job_settings}} (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    buckets  integer NOT NULL DEFAULT 1024 CHECK (buckets BETWEEN 1 AND 65536)
);
INSERT INTO {{job_settings}} (only_row) VALUES (true) ON CONFLICT DO NOTHING;

-- `state` is what people read: queued, processing, errored (will be tried again), failed (a dead letter). Completed and
-- canceled jobs are in the archive. `standing` is what workers go by:
--   ready    in line, by (priority, turn); and when claimed it stays there, with the state processing
--   blocked  behind another job of its key
--   later    not due yet; comes into its key's order when it is
--   waiting  for its next try; keeps its key
--   held     failed, and keeps its key until somebody decides
--   NULL     failed
-- Of the ordered jobs of a key at most one is ready (in line or claimed), waiting or held: a unique index says so.
-- What a claim changes is in no index, not even in a condition of one, and pages are filled to less than a half: so the new
-- version of a row lies beside the old one and a claim writes no index at all. That is most of its price. Keep it so: `state`,
-- for one, must not come into an index. A finished job is deleted, so no index holds finished ones.
CREATE TABLE IF NOT EXISTS {{jobs}} (
    id                bigint      PRIMARY KEY,
    queue             text        NOT NULL,
    state             text        NOT NULL DEFAULT 'queued',
    standing          text,
    priority          smallint    NOT NULL DEFAULT 5,
    turn              bigint,
    partition_key     text,
    partition_bucket  integer,
    ordered           boolean     NOT NULL DEFAULT false,
    payload           jsonb       NOT NULL DEFAULT '{}',
    metadata          jsonb,
    idempotency_key   text,
    queued_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    run_at            timestamptz,
    max_attempts      integer,
    timeout           interval,
    num_failures      integer     NOT NULL DEFAULT 0,
    num_resets        integer     NOT NULL DEFAULT 0,
    failure_message   text,
    errors            jsonb,
    started_at        timestamptz,
    finished_at       timestamptz,
    last_heartbeat_at timestamptz,
    worker_hostname   text        NOT NULL DEFAULT '',
    lease_generation  bigint      NOT NULL DEFAULT 0,
    cancel            boolean     NOT NULL DEFAULT false,
    progress          smallint,
    progress_text     text,
    execution_logs    jsonb[],
    CONSTRAINT priority_range CHECK (priority BETWEEN 0 AND 9)
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_insert_scale_factor = 0.5);
CREATE INDEX IF NOT EXISTS {{idx:jobs:ready}} ON {{jobs}} (queue, priority, turn) WHERE standing = 'ready';
CREATE INDEX IF NOT EXISTS {{idx:jobs:due}} ON {{jobs}} (queue, run_at) WHERE standing IN ('later', 'waiting');
CREATE INDEX IF NOT EXISTS {{idx:jobs:key}} ON {{jobs}} (queue, partition_key, turn) WHERE ordered AND standing = 'blocked';
CREATE UNIQUE INDEX IF NOT EXISTS {{idx:jobs:active}} ON {{jobs}} (queue, partition_key)
    WHERE ordered AND standing IN ('ready', 'waiting', 'held');
CREATE INDEX IF NOT EXISTS {{idx:jobs:failed}} ON {{jobs}} (queue, finished_at) WHERE standing IS NULL OR standing = 'held';

-- What runs: a row a claim, made with it. A job runs under it while its state is processing and its lease_generation the
-- fence. Whoever claimed removes it when all of them are over, the resetter when the worker could not: never before, because
-- a job that runs without its claim would be found by nobody.
CREATE TABLE IF NOT EXISTS {{job_claims}} (
    queue      text        NOT NULL,
    fence      bigint      NOT NULL,
    worker     text        NOT NULL,
    ids        bigint[]    NOT NULL,
    claimed_at timestamptz NOT NULL,
    PRIMARY KEY (queue, fence)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Jobs that are over, one partition a day; retention drops whole days. What has no day of its own goes to the default.
CREATE TABLE IF NOT EXISTS {{jobs_archive}} (
    id               bigint      NOT NULL,
    queue            text        NOT NULL,
    state            text        NOT NULL,
    priority         smallint    NOT NULL,
    partition_key    text,
    partition_bucket integer,
    payload          jsonb       NOT NULL,
    metadata         jsonb,
    idempotency_key  text,
    queued_at        timestamptz NOT NULL,
    run_at           timestamptz,
    num_failures     integer     NOT NULL,
    num_resets       integer     NOT NULL,
    failure_message  text,
    errors           jsonb,
    started_at       timestamptz,
    finished_at      timestamptz NOT NULL,
    worker_hostname  text        NOT NULL,
    lease_generation bigint      NOT NULL,
    execution_logs   jsonb[]
) PARTITION BY RANGE (finished_at);
CREATE TABLE IF NOT EXISTS {{rel:jobs_archive:rest}} PARTITION OF {{jobs_archive}} DEFAULT;
-- Finished roughly in the order of their ids: that is enough to find one, and costs next to nothing to keep.
CREATE INDEX IF NOT EXISTS {{idx:jobs_archive:id}} ON {{jobs_archive}} USING brin (id) WITH (autosummarize = on);

-- The promise that an idempotency key makes one job: kept apart from the jobs, so that it outlives them.
CREATE TABLE IF NOT EXISTS {{job_idempotency}} (
    queue           text        NOT NULL,
    idempotency_key text        NOT NULL,
    job_id          bigint      NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (queue, idempotency_key)
);
CREATE INDEX IF NOT EXISTS {{idx:job_idempotency:age}} ON {{job_idempotency}} (created_at);

-- `ordered`: NULL counts as true, so that jobs enqueued before any worker has said so are safe.
CREATE TABLE IF NOT EXISTS {{queue_controls}} (
    queue        text        PRIMARY KEY,
    paused       boolean     NOT NULL DEFAULT false,
    paused_by    text,
    paused_at    timestamptz,
    pause_reason text,
    ordered      boolean,
    max_running  integer,
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- Who did what to a queue's jobs, when and why. Rows are only ever added.
CREATE TABLE IF NOT EXISTS {{queue_audit}} (
    id         bigserial   PRIMARY KEY,
    queue      text        NOT NULL,
    action     text        NOT NULL,
    actor      text,
    reason     text,
    detail     jsonb       NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS {{idx:queue_audit:queue}} ON {{queue_audit}} (queue, id DESC);
