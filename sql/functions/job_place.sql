-- job_place(job): where a job stands, in words: "behind job 17 of key order:9".
CREATE OR REPLACE FUNCTION {{fn:job_place}}(job {{jobs}})
RETURNS text LANGUAGE plpgsql STABLE AS $mr$
DECLARE
    own text := CASE WHEN job.ordered THEN ' key ' || job.partition_key END;
    first bigint;
    others bigint;
    behind text := '';
BEGIN
    IF job.ordered AND job.standing IN ('ready', 'waiting', 'held', 'blocked') THEN
        SELECT a.id INTO first FROM {{jobs}} AS a WHERE a.queue = job.queue AND a.partition_key = job.partition_key AND a.ordered
            AND a.standing IN ('ready', 'waiting', 'held');
        SELECT count(*) INTO others FROM (SELECT FROM {{jobs}} AS b WHERE b.queue = job.queue AND b.partition_key = job.partition_key
            AND b.ordered AND b.standing = 'blocked' AND (job.standing <> 'blocked' OR b.turn < job.turn) LIMIT 1001) AS c;
        IF job.standing <> 'blocked' AND others > 0 THEN
            behind := '; ' || CASE WHEN others > 1000 THEN 'more than 1000' ELSE others::text END || ' behind it';
        END IF;
    END IF;
    RETURN CASE CASE WHEN job.state = 'processing' THEN 'running' ELSE job.standing END
        WHEN 'ready' THEN 'in line' || coalesce(', first of' || own, '') || behind
        WHEN 'blocked' THEN CASE WHEN first IS NOT NULL THEN 'behind job ' || first || CASE WHEN others > 0 THEN ' and '
                || CASE WHEN others > 1000 THEN 'more than 1000' ELSE others::text END || ' more' ELSE '' END || ' of' || own
            WHEN others > 0 THEN 'behind ' || others || ' of' || own ELSE 'about to come into line, as the first of' || own END
        WHEN 'later' THEN 'not due before ' || job.run_at
        WHEN 'waiting' THEN 'waits until ' || job.run_at || CASE WHEN job.state = 'errored' THEN ' for its next try' ELSE '' END
            || coalesce(', and keeps' || own, '') || behind
        WHEN 'running' THEN 'running' || coalesce(', and has' || own, '') || behind
        WHEN 'held' THEN 'failed, and keeps' || own || ' until somebody retries or drops it' || behind
        ELSE 'a dead letter: failed, until somebody retries or drops it' END;
END
$mr$;
