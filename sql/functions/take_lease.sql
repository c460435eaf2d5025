-- take_lease(worker, renew, length): whether the worker holds the leader's lease, taking it when it is free or over
-- and renewing it when told to. A term never repeats.
CREATE OR REPLACE FUNCTION {{fn:take_lease}}(worker uuid, renew boolean, length interval)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $mr$
DECLARE
    right_now timestamptz := pg_catalog.clock_timestamp();
    holder uuid;
    until timestamptz;
BEGIN
    SELECT l.leader_id, l.expires_at INTO holder, until
        FROM {{worker_leader_election}} AS l WHERE l.lease_key = 'leader';
    IF holder IS NOT NULL AND until >= right_now AND (holder <> worker OR NOT renew) THEN
        RETURN holder = worker;
    END IF;
    INSERT INTO {{worker_leader_election}} AS l (lease_key, leader_id, expires_at, term)
        VALUES ('leader', worker, right_now + length, 1)
        ON CONFLICT (lease_key) DO UPDATE SET leader_id = worker, expires_at = excluded.expires_at,
            updated_at = right_now, term = l.term + (l.leader_id IS DISTINCT FROM worker)::integer
            WHERE l.leader_id = worker OR l.leader_id IS NULL
                OR l.expires_at < pg_catalog.clock_timestamp();
    RETURN FOUND;
END
$mr$;
