-- append_events(...): the one way into the log, for mr_append() and append().
-- Streams are arrays of the same length; events likewise, `ev_stream` (from 1) saying which stream an event goes to
-- and `ev_seq` (from 1) which of that stream's new events it is. Gives one row an event, in the events' order.
-- First every head is reserved, in one order for all appenders so that they cannot deadlock, and only then does one
-- INSERT draw the positions: a conflict costs none.
--   expected -1: any version; 0: the stream must not exist; n: it must be at version n
--   MR001  a stream is not at its expected version
--   MR005  these functions write to another log than the caller means
CREATE OR REPLACE FUNCTION {{schema}}.append_events(
    log_name text,
    stream_types text[], stream_ids text[], expected bigint[], counts bigint[],
    ev_stream integer[], ev_seq integer[], event_types text[], payloads bytea[], event_ids uuid[],
    event_versions integer[], trace_ids text[], correlation_ids text[], causation_ids text[],
    metadata text[])
RETURNS TABLE (pos bigint, ver bigint) LANGUAGE plpgsql VOLATILE AS $mr$
#variable_conflict use_column
DECLARE
    stream record;
    head bigint;
    base bigint[] := pg_catalog.array_fill(0::bigint, ARRAY[pg_catalog.cardinality(stream_types)]);
    written bigint;
{{unless:payload_bytea}}
    converted {{type:payload}}[];
{{end}}
BEGIN
    IF log_name <> {{log_name}} THEN
        RAISE EXCEPTION 'the append functions in schema % write to %, not to %',
            {{schema_literal}}, {{log_name}}, log_name
            USING ERRCODE = 'MR005', HINT = 'give each log its own schema for Millrace';
    END IF;
{{unless:payload_bytea}}
    -- Before anything is reserved or drawn, so that a payload the column cannot hold costs nothing.
    BEGIN
        converted := ARRAY(
            SELECT pg_catalog.convert_from(p.bytes, 'UTF8')::{{type:payload}}
            FROM pg_catalog.unnest(payloads) WITH ORDINALITY AS p (bytes, nr) ORDER BY p.nr);
    EXCEPTION WHEN data_exception THEN
        FOR i IN 1 .. pg_catalog.cardinality(payloads) LOOP
            BEGIN
                PERFORM pg_catalog.convert_from(payloads[i], 'UTF8')::{{type:payload}};
            EXCEPTION WHEN data_exception THEN
                RAISE EXCEPTION 'event %: its payload does not fit a column of type %: %',
                    i, {{type_literal:payload}}, SQLERRM USING ERRCODE = SQLSTATE;
            END;
        END LOOP;
        RAISE;
    END;
{{end}}
    FOR stream IN
        SELECT s.type, s.id, s.expected, s.count, s.nr::integer AS nr
        FROM ROWS FROM (pg_catalog.unnest(stream_types), pg_catalog.unnest(stream_ids),
                        pg_catalog.unnest(expected), pg_catalog.unnest(counts))
             WITH ORDINALITY AS s (type, id, expected, count, nr)
        ORDER BY s.type COLLATE "C", s.id COLLATE "C"
    LOOP
        IF stream.expected = -1 THEN
            INSERT INTO {{heads}} AS h ({{head:type}}, {{head:id}}, {{head:version}})
                VALUES (stream.type::{{headtype:type}}, stream.id::{{headtype:id}}, stream.count)
                ON CONFLICT ({{head:type}}, {{head:id}}) DO UPDATE
                    SET {{head:version}} = h.{{head:version}} + excluded.{{head:version}}{{if:heads_updated_at}},
                        updated_at = pg_catalog.now(){{end}}
                RETURNING h.{{head:version}} INTO head;
        ELSIF stream.expected = 0 THEN
            INSERT INTO {{heads}} AS h ({{head:type}}, {{head:id}}, {{head:version}})
                VALUES (stream.type::{{headtype:type}}, stream.id::{{headtype:id}}, stream.count)
                ON CONFLICT ({{head:type}}, {{head:id}}) DO NOTHING
                RETURNING h.{{head:version}} INTO head;
        ELSE
            UPDATE {{heads}} AS h
                SET {{head:version}} = h.{{head:version}} + stream.count{{if:heads_updated_at}},
                    updated_at = pg_catalog.now(){{end}}
                WHERE h.{{head:type}} = stream.type::{{headtype:type}}
                  AND h.{{head:id}} = stream.id::{{headtype:id}}
                  AND h.{{head:version}} = stream.expected
                RETURNING h.{{head:version}} INTO head;
        END IF;
        IF head IS NULL THEN
            SELECT h.{{head:version}} INTO head FROM {{heads}} AS h
                WHERE h.{{head:type}} = stream.type::{{headtype:type}}
                  AND h.{{head:id}} = stream.id::{{headtype:id}};
            IF head IS NULL THEN
                RAISE EXCEPTION 'stream %/% does not exist, expected version %',
                    stream.type, stream.id, stream.expected USING ERRCODE = 'MR001';
            END IF;
            RAISE EXCEPTION 'stream %/% is at version %, expected %', stream.type, stream.id, head,
                CASE stream.expected WHEN 0 THEN 'none' ELSE stream.expected::text END
                USING ERRCODE = 'MR001';
        END IF;
        base[stream.nr] := head - stream.count;
    END LOOP;

    RETURN QUERY
    INSERT INTO {{events}} AS e (
        {{col:aggregate_type}}, {{col:aggregate_id}}{{if:aggregate_version}}, {{col:aggregate_version}}{{end}},
        {{col:event_type}}, {{col:payload}}{{if:event_id_needed}}, {{col:event_id}}{{end}}{{if:event_version}},
        {{col:event_version}}{{end}}{{if:trace_id}}, {{col:trace_id}}{{end}}{{if:correlation_id}},
        {{col:correlation_id}}{{end}}{{if:causation_id}}, {{col:causation_id}}{{end}}{{if:metadata}},
        {{col:metadata}}{{end}}{{if:created_at_needed}}, {{col:created_at}}{{end}})
    SELECT
        stream_types[n.stream]::{{type:aggregate_type}},
        stream_ids[n.stream]::{{type:aggregate_id}},
{{if:aggregate_version}}
        (base[n.stream] + n.seq)::{{type:aggregate_version}},
{{end}}
        n.event_type::{{type:event_type}},
        n.payload
{{if:event_id_needed}}
        , n.event_id::{{type:event_id}}
{{end}}
{{if:event_version}}
        , n.event_version::{{type:event_version}}
{{end}}
{{if:trace_id}}
        , n.trace_id::{{type:trace_id}}
{{end}}
{{if:correlation_id}}
        , n.correlation_id::{{type:correlation_id}}
{{end}}
{{if:causation_id}}
        , n.causation_id::{{type:causation_id}}
{{end}}
{{if:metadata}}
        , n.metadata::{{type:metadata}}
{{end}}
{{if:created_at_needed}}
        , pg_catalog.now()::{{type:created_at}}
{{end}}
    -- Expanded side by side, in the arrays' order, one event at a time: no copy of them all and no sort.
    FROM (SELECT
        pg_catalog.unnest(ev_stream) AS stream, pg_catalog.unnest(ev_seq) AS seq,
        pg_catalog.unnest(event_types) AS event_type,
        pg_catalog.unnest({{if:payload_bytea}}payloads{{end}}{{unless:payload_bytea}}converted{{end}}) AS payload,
        pg_catalog.unnest(event_ids) AS event_id, pg_catalog.unnest(event_versions) AS event_version,
        pg_catalog.unnest(trace_ids) AS trace_id, pg_catalog.unnest(correlation_ids) AS correlation_id,
        pg_catalog.unnest(causation_ids) AS causation_id, pg_catalog.unnest(metadata) AS metadata) AS n
    RETURNING e.{{col:global_position}}::bigint, {{if:aggregate_version}}e.{{col:aggregate_version}}::bigint{{end}}{{unless:aggregate_version}}0::bigint{{end}};
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> pg_catalog.cardinality(event_types) THEN
        RAISE EXCEPTION 'only % of % events reached %: a trigger or rule took the others away',
            written, pg_catalog.cardinality(event_types), {{log_name}} USING ERRCODE = '55000';
    END IF;
END
$mr$;
