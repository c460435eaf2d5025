-- pass_skips(consumer, worker, positions): a batch passes over events that somebody asked to skip: the request becomes
-- a row in consumer_gap_skips that says who and why. Runs in the batch's own transaction, after its fence.
CREATE OR REPLACE FUNCTION {{fn:pass_skips}}(consumer text, worker uuid, positions bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    requests jsonb;
BEGIN
    SELECT k.skips INTO requests FROM {{consumer_controls}} AS k
        WHERE k.consumer_name = consumer FOR NO KEY UPDATE;
    INSERT INTO {{consumer_gap_skips}} (consumer_name, worker_id, gap_position, gap_end, skip_to_position,
            highest_visible_position, first_seen_at, strategy, decided_by, reason)
        SELECT consumer, worker, p.position, p.position, p.position + 1, p.position,
            coalesce((r.item->>'at')::timestamptz, pg_catalog.clock_timestamp()), 'skip', r.item->>'by',
            r.item->>'reason'
        FROM unnest(positions) AS p(position)
        LEFT JOIN LATERAL (SELECT i.item FROM jsonb_array_elements(requests) AS i(item)
            WHERE (i.item->>'position')::bigint = p.position LIMIT 1) AS r ON true;
    UPDATE {{consumer_controls}} AS k
        SET skips = coalesce((SELECT jsonb_agg(i.item) FROM jsonb_array_elements(requests) AS i(item)
                WHERE (i.item->>'position')::bigint <> ALL (positions)), '[]'),
            updated_at = pg_catalog.clock_timestamp()
        WHERE k.consumer_name = consumer;
END
$mr$;
