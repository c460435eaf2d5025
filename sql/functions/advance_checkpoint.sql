-- advance_checkpoint(consumer, worker, expected, target, known_epoch): the fence and the new checkpoint of a batch.
-- Runs in the batch's own transaction, before its commit. Whoever lost ownership finds the checkpoint changed or
-- itself not the owner, and the whole batch rolls back.
--   MR004  the consumer has no checkpoint row
--   MR002  the checkpoint is not where the batch started
--   MR003  the consumer is assigned to another worker
--   MR009  it was paused, reset, skipped or replayed since the worker last looked (consumer_controls.epoch)
-- Locks nothing but the checkpoint row: the assignment is only read, in a snapshot taken after the lock was got,
-- so the leader never waits for a batch. A NULL worker skips the ownership check, a
-- NULL epoch the one of the controls.
-- Waits only a moment for the row (55P03, try again): a new owner whose predecessor's batch still runs must not keep
-- an executor, which has other consumers to serve, waiting for it.
CREATE OR REPLACE FUNCTION {{fn:advance_checkpoint}}(
    consumer text, worker uuid, expected bigint, target bigint, known_epoch bigint DEFAULT NULL)
RETURNS void LANGUAGE plpgsql VOLATILE SET lock_timeout = '250ms' AS $mr$
DECLARE
    found_position bigint;
    owner uuid;
    found_epoch bigint;
BEGIN
    SELECT c.last_position INTO found_position
        FROM {{consumer_checkpoints}} AS c WHERE c.consumer_name = consumer FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'consumer % has no checkpoint', consumer USING ERRCODE = 'MR004';
    END IF;
    IF found_position <> expected THEN
        RAISE EXCEPTION 'checkpoint of consumer % is at %, not at % where this batch started',
            consumer, found_position, expected USING ERRCODE = 'MR002';
    END IF;
    IF target < expected THEN
        RAISE EXCEPTION 'checkpoint of consumer % cannot go back from % to % in a batch',
            consumer, expected, target USING ERRCODE = '22023';
    END IF;
    SELECT a.worker_id INTO owner
        FROM {{consumer_assignments}} AS a WHERE a.consumer_name = consumer;
    IF owner <> worker THEN
        RAISE EXCEPTION 'consumer % is assigned to worker %, not to %', consumer, owner, worker
            USING ERRCODE = 'MR003';
    END IF;
    IF known_epoch IS NOT NULL THEN
        SELECT k.epoch INTO found_epoch FROM {{consumer_controls}} AS k WHERE k.consumer_name = consumer;
        IF coalesce(found_epoch, 0) <> known_epoch THEN
            RAISE EXCEPTION 'consumer % was paused, reset, skipped or replayed meanwhile', consumer
                USING ERRCODE = 'MR009';
        END IF;
    END IF;
    IF target = expected THEN
        RETURN; -- only the fence was asked for
    END IF;
    UPDATE {{consumer_checkpoints}} AS c
        SET last_position = target, updated_at = pg_catalog.now()
        WHERE c.consumer_name = consumer;
END
$mr$;
