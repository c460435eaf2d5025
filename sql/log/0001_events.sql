-- The event log, created only when no table of that name exists.
-- The sequence keeps CACHE 1: settling by lock evidence relies on positions being drawn one by one, by the
-- INSERT itself.
CREATE TABLE IF NOT EXISTS {{events}} (
    {{col:global_position}} bigserial PRIMARY KEY,
    {{col:aggregate_type}} text NOT NULL,
    {{col:aggregate_id}} text NOT NULL,
    {{col:aggregate_version}} bigint NOT NULL,
    {{col:event_id}} uuid NOT NULL UNIQUE,
    {{col:event_type}} text NOT NULL,
    {{col:event_version}} integer NOT NULL DEFAULT 1,
    {{col:payload}} bytea NOT NULL,
    {{col:trace_id}} text,
    {{col:correlation_id}} text,
    {{col:causation_id}} text,
    {{col:metadata}} jsonb,
    {{col:created_at}} timestamptz NOT NULL DEFAULT now(),
    UNIQUE ({{col:aggregate_type}}, {{col:aggregate_id}}, {{col:aggregate_version}})
);
CREATE INDEX IF NOT EXISTS {{idx:events:event_type}}
    ON {{events}} ({{col:event_type}}, {{col:global_position}});
CREATE INDEX IF NOT EXISTS {{idx:events:type_position}}
    ON {{events}} ({{col:aggregate_type}}, {{col:global_position}});
CREATE INDEX IF NOT EXISTS {{idx:events:correlation}}
    ON {{events}} ({{col:correlation_id}}) WHERE {{col:correlation_id}} IS NOT NULL;

-- One row a stream: its version, reserved before positions are drawn. Room in each page keeps updates HOT.
CREATE TABLE IF NOT EXISTS {{heads}} (
    {{head:type}} text NOT NULL,
    {{head:id}} text NOT NULL,
    {{head:version}} bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY ({{head:type}}, {{head:id}})
) WITH (fillfactor = 70);
