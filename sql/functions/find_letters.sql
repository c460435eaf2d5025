-- find_letters(filter): the dead letters that a filter means. Its keys, each of which may be missing: consumer (all slots
-- of a partitioned one, or one slot by its own name), position, from, to, aggregate_type, aggregate_id, event_type,
-- state, error (part of its text, in any case), before, after (times of failure).
CREATE OR REPLACE FUNCTION {{fn:find_letters}}(filter jsonb)
RETURNS SETOF {{consumer_dead_letters}} LANGUAGE sql STABLE AS $mr$
    SELECT l.* FROM {{consumer_dead_letters}} AS l
    WHERE (NOT filter ? 'consumer' OR l.consumer_name = filter->>'consumer'
            OR (starts_with(l.consumer_name, (filter->>'consumer') || '#')
                AND substr(l.consumer_name, length(filter->>'consumer') + 1) ~ '^#[0-9]+/[0-9]+$'))
        AND (NOT filter ? 'position' OR l.global_position = (filter->>'position')::bigint)
        AND (NOT filter ? 'from' OR l.global_position >= (filter->>'from')::bigint)
        AND (NOT filter ? 'to' OR l.global_position <= (filter->>'to')::bigint)
        AND (NOT filter ? 'aggregate_type' OR l.aggregate_type = filter->>'aggregate_type')
        AND (NOT filter ? 'aggregate_id' OR l.aggregate_id = filter->>'aggregate_id')
        AND (NOT filter ? 'event_type' OR l.event_type = filter->>'event_type')
        AND (NOT filter ? 'state' OR l.state = filter->>'state')
        AND (NOT filter ? 'error' OR strpos(lower(l.error), lower(filter->>'error')) > 0)
        AND (NOT filter ? 'before' OR l.created_at < (filter->>'before')::timestamptz)
        AND (NOT filter ? 'after' OR l.created_at > (filter->>'after')::timestamptz)
$mr$;
