-- operate_jobs(action, queue, filter, ...): what people do to jobs, see retry_jobs, cancel_jobs, requeue_jobs and drop_jobs. Gives a row for
-- each job meant: what it was, what it is now, whether that was done, and why not or what is still to come. At most 500 a call, for
-- each may need a lock of its key: `above` in the filter goes on.
-- Never waits for a row, and half a second at most for the keys of jobs that are just being enqueued: what is busy is told.
-- A row of the audit says who did what to which of them, and why.
--   MR020  a filter that cannot be, or an empty one without "all"
CREATE OR REPLACE FUNCTION {{fn:operate_jobs}}(
    action text, queue text, filter jsonb, who text, why text, due timestamptz, counters boolean, lease interval)
RETURNS TABLE (id bigint, was text, state text, done boolean, note text) LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    most CONSTANT integer := 500;
    usual CONSTANT text[] := CASE action WHEN 'retry' THEN '{errored,failed}' WHEN 'cancel' THEN '{queued,errored,processing}'
        WHEN 'requeue' THEN '{queued,errored,failed}' ELSE '{failed}' END::text[];
    ids bigint[];
    states text[];
    keys text[];
    had text[];
    free text[] := '{}';
    changed bigint[] := '{}';
    seen record;
    job {{jobs}};
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.jsonb_object_keys(filter) AS k WHERE k NOT IN ('limit', 'above', 'all', 'archived'))
        AND (filter->>'all')::boolean IS NOT TRUE THEN
        RAISE EXCEPTION 'say which jobs of queue % to %, or that all of them are meant', queue, action
            USING ERRCODE = 'MR020', HINT = 'a filter {"all": true} means all';
    END IF;
    IF pg_catalog.jsonb_array_length(filter->'ids') > most THEN
        RAISE EXCEPTION 'more than % ids', most USING ERRCODE = 'MR020';
    END IF;
    filter := filter || pg_catalog.jsonb_build_object('limit', least((filter->>'limit')::bigint, most));
    -- What gives up a key, or comes behind others of one, must not meet a producer of it half-way. The others leave their key as it is.
    SELECT pg_catalog.array_agg(f.id ORDER BY f.id), pg_catalog.array_agg(f.state ORDER BY f.id),
            pg_catalog.array_agg(f.key) FILTER (WHERE f.ordered AND NOT (action = 'cancel' AND f.state = 'processing')
                AND NOT (action = 'retry' AND f.standing IS NOT NULL))
        INTO ids, states, keys FROM {{fn:find_jobs}}(queue, filter, usual) AS f;
    had := {{fn:try_lock_keys}}(queue, keys, '500 ms');
    FOR seen IN SELECT * FROM unnest(ids, states) AS f(id, state) LOOP
        id := seen.id;
        was := seen.state;
        state := seen.state;
        note := NULL;
        SELECT * INTO job FROM {{jobs}} AS j WHERE j.id = seen.id FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            note := 'another session has its row locked, or has just ended it; try again';
        ELSIF job.state <> seen.state THEN
            -- The person decided about what was seen.
            state := job.state;
            note := 'it changed just now, from ' || seen.state;
        ELSE
            note := {{fn:refuse_job}}(action, job, lease);
        END IF;
        IF note IS NULL AND job.ordered AND NOT (action = 'cancel' AND job.state = 'processing')
            AND NOT (action = 'retry' AND job.standing IS NOT NULL) THEN
            IF job.partition_key = ANY (had) THEN
                free := free || job.partition_key;
            ELSE
                note := 'jobs of its key are just being enqueued, by a transaction that is open; try again';
            END IF;
        END IF;
        done := note IS NULL;
        IF done THEN
            changed := changed || id;
            IF action IN ('retry', 'requeue') THEN
                PERFORM {{fn:revive_job}}(job, due, action = 'requeue', counters);
                state := 'queued';
            ELSIF action = 'cancel' AND job.state = 'processing' THEN
                UPDATE {{jobs}} AS j SET cancel = true WHERE j.id = seen.id;
                note := 'its worker is told with its next heartbeat';
            ELSE
                state := CASE WHEN action = 'drop' AND job.state = 'failed' THEN 'failed' ELSE 'canceled' END;
                PERFORM {{fn:end_job}}(job, state, why);
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    -- Those that were named and are not there; requeue_jobs knows what to do with those that are over.
    FOR seen IN SELECT n.id, (SELECT a.state FROM {{jobs_archive}} AS a WHERE a.id = n.id AND a.queue = $2 LIMIT 1) AS over
        FROM (SELECT DISTINCT i::bigint FROM pg_catalog.jsonb_array_elements_text(filter->'ids') AS i) AS n(id)
        WHERE n.id <> ALL (coalesce(ids, '{}')) ORDER BY n.id
    LOOP
        CONTINUE WHEN action = 'requeue' AND seen.over IS NOT NULL;
        id := seen.id;
        was := seen.over;
        state := seen.over;
        done := false;
        note := CASE WHEN seen.over IS NOT NULL THEN 'it has ended: ' || seen.over || '; requeue runs it once more'
            WHEN EXISTS (SELECT FROM {{jobs}} AS j WHERE j.id = seen.id AND j.queue = $2) THEN 'the filter leaves it out'
            ELSE 'the queue has no such job' END;
        RETURN NEXT;
    END LOOP;
    IF free <> '{}' THEN
        PERFORM {{fn:promote_keys}}(queue, free);
    END IF;
    IF changed <> '{}' THEN
        INSERT INTO {{queue_audit}} (queue, action, actor, reason, detail)
            VALUES ($2, $1, who, why, pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object('jobs',
                pg_catalog.cardinality(changed), 'ids', changed, 'filter', filter - 'limit' - 'ids', 'due', due)));
    END IF;
END
$mr$;
