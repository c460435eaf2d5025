-- hold_parts(parts): locks these checkpoints until the end of the transaction, in the order of their names. A batch
-- locks its checkpoint first and reads the controls after that (advance_checkpoint), so whoever holds the checkpoint,
-- changes the controls' epoch and commits knows: batches of before have ended, later ones find the new epoch.
-- Always before any row of consumer_controls or consumer_dead_letters, as batches do it: the other order would deadlock.
-- Waits up to 35 seconds in all, longer than a batch may take by default, then
--   55P03  a batch still runs; the message names its session
-- Names without a checkpoint are passed over.
CREATE OR REPLACE FUNCTION {{fn:hold_parts}}(parts text[])
RETURNS void LANGUAGE plpgsql VOLATILE SET lock_timeout = '35s' AS $mr$
DECLARE
    part text;
    holder text;
    until timestamptz := pg_catalog.clock_timestamp() + interval '35 seconds';
BEGIN
    FOR part IN SELECT DISTINCT p.name COLLATE "C" FROM unnest(parts) AS p(name) ORDER BY 1 LOOP
        PERFORM pg_catalog.set_config('lock_timeout', greatest(1,
            (extract(epoch FROM until - pg_catalog.clock_timestamp()) * 1000)::bigint)::text, true);
        PERFORM FROM {{consumer_checkpoints}} AS c WHERE c.consumer_name = part FOR NO KEY UPDATE;
    END LOOP;
EXCEPTION WHEN lock_not_available THEN
    SELECT ' (session ' || l.pid || coalesce(', ' || nullif(a.application_name, ''), '')
            || coalesce(', for ' || round(extract(epoch FROM pg_catalog.clock_timestamp() - a.xact_start)) || ' s', '')
            || ')'
        INTO holder
        FROM {{consumer_checkpoints}} AS c
        JOIN pg_catalog.pg_locks AS l ON l.locktype = 'transactionid' AND l.granted AND l.transactionid = c.xmax
        LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
        WHERE c.consumer_name = part LIMIT 1;
    RAISE EXCEPTION 'a batch of consumer % is still running%, nothing was changed; try again', part,
        coalesce(holder, '') USING ERRCODE = '55P03';
END
$mr$;
