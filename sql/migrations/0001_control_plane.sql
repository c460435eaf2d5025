-- The control plane's first tables: workers, assignments, checkpoints, audit, controls.
-- Each table starts with the columns that other event-log workers on PostgreSQL use, so that an existing
-- table of that shape is adopted; what Millrace adds follows as separate columns.
-- No index on a column that is updated all the time: it would make those updates non-HOT.

CREATE TABLE IF NOT EXISTS {{worker_nodes}} (
    worker_id    uuid        PRIMARY KEY,
    heartbeat_at timestamptz NOT NULL DEFAULT now(),
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
ALTER TABLE {{worker_nodes}}
    ADD COLUMN IF NOT EXISTS host         text,
    ADD COLUMN IF NOT EXISTS pid          integer,
    ADD COLUMN IF NOT EXISTS version      text,
    ADD COLUMN IF NOT EXISTS started_at   timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN IF NOT EXISTS consumers    text[]      NOT NULL DEFAULT '{}',
    ADD COLUMN IF NOT EXISTS queues       text[]      NOT NULL DEFAULT '{}',
    ADD COLUMN IF NOT EXISTS state        text        NOT NULL DEFAULT 'alive',
    ADD COLUMN IF NOT EXISTS session_lock bigint,
    ADD COLUMN IF NOT EXISTS info         jsonb;

-- A batch never locks this row, so the leader never waits for a batch. Its foreign key takes KEY SHARE on the
-- worker's row, which heartbeats (no key changed) do not conflict with.
CREATE TABLE IF NOT EXISTS {{consumer_assignments}} (
    consumer_name text        PRIMARY KEY,
    worker_id     uuid        REFERENCES {{worker_nodes}} (worker_id) ON DELETE SET NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE {{consumer_assignments}}
    ADD COLUMN IF NOT EXISTS generation bigint NOT NULL DEFAULT 0;
CREATE INDEX IF NOT EXISTS {{idx:consumer_assignments:worker}} ON {{consumer_assignments}} (worker_id);

CREATE TABLE IF NOT EXISTS {{consumer_checkpoints}} (
    consumer_name text        PRIMARY KEY,
    last_position bigint      NOT NULL DEFAULT 0,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 20);

CREATE TABLE IF NOT EXISTS {{consumer_gap_skips}} (
    id                       bigserial   PRIMARY KEY,
    consumer_name            text        NOT NULL,
    worker_id                uuid,
    gap_position             bigint      NOT NULL,
    skip_to_position         bigint      NOT NULL,
    highest_visible_position bigint      NOT NULL,
    first_seen_at            timestamptz NOT NULL,
    created_at               timestamptz NOT NULL DEFAULT now()
);
-- gap_position..gap_end is exactly what was missing. Rows of an adopted table know only its first position.
ALTER TABLE {{consumer_gap_skips}}
    ADD COLUMN IF NOT EXISTS gap_end    bigint,
    ADD COLUMN IF NOT EXISTS strategy   text NOT NULL DEFAULT 'unknown',
    ADD COLUMN IF NOT EXISTS decided_by text,
    ADD COLUMN IF NOT EXISTS reason     text,
    ALTER COLUMN worker_id DROP NOT NULL; -- a person's decision has no worker
UPDATE {{consumer_gap_skips}} SET gap_end = gap_position WHERE gap_end IS NULL;
ALTER TABLE {{consumer_gap_skips}} ALTER COLUMN gap_end SET NOT NULL;
CREATE INDEX IF NOT EXISTS {{idx:consumer_gap_skips:consumer}}
    ON {{consumer_gap_skips}} (consumer_name, created_at DESC);

-- One row an event that a consumer gave up on (`poison`), or that waits behind one of its stream (`parked`).
CREATE TABLE IF NOT EXISTS {{consumer_dead_letters}} (
    id              bigserial   PRIMARY KEY,
    consumer_name   text        NOT NULL,
    global_position bigint      NOT NULL,
    state           text        NOT NULL DEFAULT 'poison',
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    event_id        text,
    error           text,
    sqlstate        text,
    attempts        integer     NOT NULL DEFAULT 0,
    worker_id       uuid,
    first_failed_at timestamptz,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    UNIQUE (consumer_name, global_position)
);
CREATE INDEX IF NOT EXISTS {{idx:consumer_dead_letters:stream}}
    ON {{consumer_dead_letters}} (consumer_name, aggregate_type, aggregate_id, global_position);

CREATE TABLE IF NOT EXISTS {{consumer_controls}} (
    consumer_name       text        PRIMARY KEY,
    paused              boolean     NOT NULL DEFAULT false,
    paused_by           text,
    paused_at           timestamptz,
    pause_reason        text,
    request             jsonb,
    last_error          text,
    last_error_at       timestamptz,
    last_error_position bigint,
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- A leader that goes leaves the row, with its term: a term never repeats, so a late write of an old leader is
-- told apart from the new one's.
CREATE TABLE IF NOT EXISTS {{worker_leader_election}} (
    lease_key  text        PRIMARY KEY,
    leader_id  uuid        REFERENCES {{worker_nodes}} (worker_id) ON DELETE SET NULL,
    expires_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 20);
ALTER TABLE {{worker_leader_election}}
    ADD COLUMN IF NOT EXISTS term bigint NOT NULL DEFAULT 0;

-- One row: up to where appenders published, for the `published` strategy.
CREATE TABLE IF NOT EXISTS {{log_published}} (
    only_row   boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    position   bigint      NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 20);
INSERT INTO {{log_published}} (only_row) VALUES (true) ON CONFLICT DO NOTHING;
