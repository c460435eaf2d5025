-- append(stream_type, stream_id, expected_version, events, notify_channel): appends to one stream, from any language,
-- in the caller's transaction. expected_version -1: any; 0: the stream must not exist; n: it must be at version n.
-- `events` is one object or an array of them:
--   {"event_type": "OrderPlaced", "data": {...}}        "type" is accepted for "event_type"
-- The payload is "data" (any JSON), or "payload" (its text as it is), or "payload_base64" (bytes); without any of them
-- it is {}. Optional: "event_id", "event_version", "trace_id", "correlation_id", "causation_id", "metadata".
-- Gives one row an event, in order. MR001 on a version conflict; 22023 on input that is not as above.
-- With notify_channel the last position is sent there at commit; that serialises the commits of all appenders, so
-- under load notify after the commit instead.
CREATE OR REPLACE FUNCTION {{schema}}.append(
    stream_type text, stream_id text, expected_version bigint, events jsonb,
    notify_channel text DEFAULT NULL)
RETURNS TABLE (global_position bigint, version bigint) LANGUAGE plpgsql VOLATILE AS $mr$
#variable_conflict use_variable
DECLARE
    list jsonb := CASE WHEN pg_catalog.jsonb_typeof(events) = 'object'
                       THEN pg_catalog.jsonb_build_array(events) ELSE events END;
    item jsonb;
    key text;
    nr integer := 0;
    event_type text;
    types text[] := '{}';
    payloads bytea[] := '{}';
    ids uuid[] := '{}';
    versions integer[] := '{}';
    traces text[] := '{}';
    correlations text[] := '{}';
    causations text[] := '{}';
    metas text[] := '{}';
    last_position bigint;
BEGIN
    IF stream_type IS NULL OR stream_type = '' OR stream_id IS NULL OR stream_id = '' THEN
        RAISE EXCEPTION 'append: stream_type and stream_id must not be empty' USING ERRCODE = '22023';
    END IF;
    IF expected_version IS NULL OR expected_version < -1 THEN
        RAISE EXCEPTION 'append: expected_version must be -1 (any), 0 (none) or the exact version, not %',
            expected_version USING ERRCODE = '22023';
    END IF;
    IF pg_catalog.jsonb_typeof(list) IS DISTINCT FROM 'array' OR list = '[]' THEN
        RAISE EXCEPTION 'append: events must be a JSON object or an array of at least one'
            USING ERRCODE = '22023';
    END IF;
    BEGIN
        FOR item IN SELECT e.value FROM pg_catalog.jsonb_array_elements(list) AS e LOOP
            nr := nr + 1;
            IF pg_catalog.jsonb_typeof(item) <> 'object' THEN
                RAISE EXCEPTION 'not a JSON object' USING ERRCODE = '22023';
            END IF;
            SELECT k INTO key FROM pg_catalog.jsonb_object_keys(item) AS k
                WHERE k <> ALL (ARRAY['event_type', 'type', 'data', 'payload', 'payload_base64', 'event_id',
                                      'event_version', 'trace_id', 'correlation_id', 'causation_id',
                                      'metadata'])
                LIMIT 1;
            IF FOUND THEN
                RAISE EXCEPTION 'unknown key "%"', key USING ERRCODE = '22023';
            END IF;
            event_type := COALESCE(item ->> 'event_type', item ->> 'type', '');
            IF event_type = '' THEN
                RAISE EXCEPTION 'no event_type' USING ERRCODE = '22023';
            END IF;
            types := types || event_type;
            payloads := payloads || CASE
                WHEN item ? 'payload_base64' THEN pg_catalog.decode(item ->> 'payload_base64', 'base64')
                WHEN pg_catalog.jsonb_typeof(item -> 'payload') = 'string'
                    THEN pg_catalog.convert_to(item ->> 'payload', 'UTF8')
                ELSE pg_catalog.convert_to(
                    COALESCE(item -> 'data', item -> 'payload', '{}')::text, 'UTF8')
                END;
            ids := ids || COALESCE((item ->> 'event_id')::uuid, pg_catalog.gen_random_uuid());
            versions := versions || COALESCE((item ->> 'event_version')::integer, 1);
            traces := traces || (item ->> 'trace_id');
            correlations := correlations || (item ->> 'correlation_id');
            causations := causations || (item ->> 'causation_id');
            metas := metas || NULLIF(item -> 'metadata', 'null')::text;
        END LOOP;
    EXCEPTION WHEN data_exception THEN
        RAISE EXCEPTION 'append: event % of %: %', nr, pg_catalog.jsonb_array_length(list), SQLERRM
            USING ERRCODE = SQLSTATE;
    END;
    FOR global_position, version IN
        SELECT a.pos, a.ver FROM {{schema}}.append_events(
            {{log_name}}, ARRAY[stream_type], ARRAY[stream_id], ARRAY[expected_version], ARRAY[nr]::bigint[],
            pg_catalog.array_fill(1, ARRAY[nr]), ARRAY(SELECT pg_catalog.generate_series(1, nr)),
            types, payloads, ids, versions, traces, correlations, causations, metas) AS a
    LOOP
        last_position := global_position;
        RETURN NEXT;
    END LOOP;
    IF notify_channel IS NOT NULL THEN
        PERFORM pg_catalog.pg_notify(notify_channel, last_position::text);
    END IF;
END
$mr$;
