-- requeue_jobs(queue, filter, who, why, due, counters, lease): jobs in any state are queued as if they had just come, due at a time (NULL: at
-- once). One that runs is left alone unless its worker is dead or its lease is over. One that is over gets a twin, a new job with
-- its payload, key, priority and metadata: those are meant only by their ids. Filters: find_jobs. Without ids and state, those that are
-- queued, errored or failed are meant. Gives: operate_jobs.
CREATE OR REPLACE FUNCTION {{fn:requeue_jobs}}(queue text, filter jsonb, who text DEFAULT NULL, why text DEFAULT NULL,
    due timestamptz DEFAULT NULL, counters boolean DEFAULT false, lease interval DEFAULT '90 s')
RETURNS TABLE (id bigint, was text, state text, done boolean, note text) LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    old record;
    twin bigint;
    made jsonb := '{}';
BEGIN
    RETURN QUERY SELECT o.* FROM {{fn:operate_jobs}}('requeue', queue, filter, who, why, due, counters, lease) AS o;
    IF NOT filter ? 'ids' THEN
        RETURN;
    END IF;
    FOR old IN SELECT a.* FROM {{jobs_archive}} AS a
        WHERE a.id = ANY (ARRAY(SELECT i::bigint FROM pg_catalog.jsonb_array_elements_text(filter->'ids') AS i)) AND a.queue = $1
            AND (NOT filter ? 'state' OR filter->'state' ? a.state) ORDER BY a.id
    LOOP
        id := old.id;
        was := old.state;
        IF old.partition_key IS NOT NULL
            AND pg_catalog.cardinality({{fn:try_lock_keys}}(queue, ARRAY[old.partition_key], '500 ms')) = 0 THEN
            state := old.state;
            done := false;
            note := 'jobs of its key are just being enqueued, by a transaction that is open; try again';
        ELSE
            SELECT e.id INTO twin FROM {{fn:enqueue}}(queue, old.payload, key => old.partition_key, priority => old.priority,
                run_at => due, metadata => old.metadata) AS e;
            state := 'queued';
            done := true;
            note := 'it is in the archive; queued once more as job ' || twin;
            made := made || pg_catalog.jsonb_build_object(old.id::text, twin);
        END IF;
        RETURN NEXT;
    END LOOP;
    IF made <> '{}' THEN
        INSERT INTO {{queue_audit}} (queue, action, actor, reason, detail)
            VALUES ($1, 'requeue', who, why, pg_catalog.jsonb_build_object('twins', made));
    END IF;
END
$mr$;
