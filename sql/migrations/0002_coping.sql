-- What consumers need when things go wrong: controls that running workers obey, an audit of what people did,
-- dead letters that can be replayed.

-- `epoch` rises with every change that somebody else than the consumer's own batches makes to its controls, its
-- checkpoint or its dead letters. A batch names the epoch it knows; one that is out of date is fenced off
-- (advance_checkpoint), so a pause, reset or skip holds from the moment it is committed.
--   pause_kind   'command' (a person's) or 'failure' (the worker's, after retries)
--   skips        [{"position": ..., "by": ..., "reason": ...}]: events that are not to be handled
ALTER TABLE {{consumer_controls}}
    ADD COLUMN IF NOT EXISTS epoch      bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS pause_kind text,
    ADD COLUMN IF NOT EXISTS skips      jsonb  NOT NULL DEFAULT '[]',
    ADD COLUMN IF NOT EXISTS setup_at   timestamptz;

-- Who did what to a consumer, when and why. Rows are only ever added.
CREATE TABLE IF NOT EXISTS {{consumer_audit}} (
    id            bigserial   PRIMARY KEY,
    consumer_name text        NOT NULL,
    action        text        NOT NULL,
    actor         text,
    reason        text,
    detail        jsonb       NOT NULL DEFAULT '{}',
    created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS {{idx:consumer_audit:consumer}} ON {{consumer_audit}} (consumer_name, id DESC);

ALTER TABLE {{consumer_dead_letters}}
    ADD COLUMN IF NOT EXISTS replay_at timestamptz,
    ADD COLUMN IF NOT EXISTS replay_by text;
CREATE INDEX IF NOT EXISTS {{idx:consumer_dead_letters:replay}}
    ON {{consumer_dead_letters}} (consumer_name, global_position) WHERE replay_at IS NOT NULL;

-- Their arguments or results changed; the functions' own files make them anew.
DROP FUNCTION IF EXISTS {{fn:advance_checkpoint}}(text, uuid, bigint, bigint);
DROP FUNCTION IF EXISTS {{fn:register_worker}}(uuid, text, integer, text, text[], bigint, interval, boolean);
DROP FUNCTION IF EXISTS {{fn:control_tick}}(uuid, boolean, jsonb, bigint, boolean, boolean, interval);
