-- wake_queue(queue): workers that run this queue look for jobs at once instead of at their next poll. A hint: polling finds
-- every job without it. Call it after the commit, in a transaction of its own, and not more often than useful: a NOTIFY
-- inside of the enqueueing transaction would make all such transactions of the database commit one by one.
--   MR020  a name that cannot be
CREATE OR REPLACE FUNCTION {{fn:wake_queue}}(queue text)
RETURNS void LANGUAGE plpgsql VOLATILE AS $mr$
BEGIN
    IF queue IS NULL OR queue = '' OR pg_catalog.octet_length(queue) > 255 THEN
        RAISE EXCEPTION 'a queue needs a name of 1 to 255 bytes' USING ERRCODE = 'MR020';
    END IF;
    PERFORM pg_catalog.pg_notify({{channel}}, 'queue:' || queue);
END
$mr$;
