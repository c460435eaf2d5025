/* Workers, the log's head and consumers as relations that the listings, the status and the health
 * report are made of.
 *
 * Their cost does not grow with the log: its head and the first event after each checkpoint come
 * from the index on the position. */
#include "observe/listing.h"

#include "log/rows.h"

/* The dead say so in their row; who lost the session lock is gone; who holds it but does not stamp
 * its row is silent. The leader is who holds the leader's lock in the session that holds its own,
 * or the lease: whichever the fleet uses, so that a listing need not be told. */
void mr__relation_workers(mr_buf *sql, const mr_names *names)
{
    mr__buf_puts(
        sql, "WITH held AS MATERIALIZED ("
             " SELECT l.pid, (l.classid::int8 << 32) | l.objid::int8 AS lock_id"
             " FROM pg_catalog.pg_locks l"
             " WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted"
             " AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d"
             " WHERE d.datname = pg_catalog.current_database())), "
             "worker AS MATERIALIZED (SELECT n.worker_id, n.host, n.pid, n.version, n.started_at,"
             " n.consumers, n.queues, n.info,"
             " CASE WHEN jsonb_typeof(n.info->'locks') = 'array' THEN n.info->'locks'"
             " ELSE '[]' END AS locks,"
             " CASE WHEN n.state = 'dead' THEN 'dead'"
             " WHEN n.session_lock IS NOT NULL"
             " AND n.session_lock NOT IN (SELECT h.lock_id FROM held h) THEN 'gone'"
             " WHEN n.heartbeat_at < pg_catalog.clock_timestamp() - $1::interval THEN 'silent'"
             " ELSE n.state END AS state,"
             " n.state <> 'dead' AND (n.worker_id IN (SELECT e.leader_id FROM ");
    mr__qname_quote(sql, &names->table[MR_TABLE_LEADER]);
    mr__buf_puts(sql,
                 " e WHERE e.lease_key = 'leader' AND e.expires_at > pg_catalog.clock_timestamp())"
                 " OR EXISTS (SELECT FROM held own JOIN held lead USING (pid)"
                 " WHERE own.lock_id = n.session_lock AND lead.lock_id = $2::int8)) AS leader,"
                 " round(extract(epoch FROM greatest(pg_catalog.clock_timestamp() - n.heartbeat_at,"
                 " interval '0'))::numeric, 1) AS heartbeat_age FROM ");
    mr__qname_quote(sql, &names->table[MR_TABLE_WORKER_NODES]);
    mr__buf_puts(sql, " n)");
}

/* The first event after a checkpoint `c`, as relation `e`: one step down the position's index. */
static void put_next_event(mr_buf *sql, const mr_log_shape *shape)
{
    mr__buf_puts(sql, " LEFT JOIN LATERAL (SELECT ev.");
    mr__rows_column(sql, shape, MR_COL_POSITION);
    mr__buf_puts(sql, "::int8 AS position, ");
    if (shape->column[MR_COL_CREATED_AT][0] == '\0') {
        mr__buf_puts(sql, "NULL");
    } else {
        mr__buf_puts(sql, "ev.");
        mr__rows_column(sql, shape, MR_COL_CREATED_AT);
    }
    mr__buf_puts(sql, "::timestamptz AS created_at FROM ");
    mr__qname_quote(sql, &shape->table);
    mr__buf_puts(sql, " ev WHERE ev.");
    mr__rows_column(sql, shape, MR_COL_POSITION);
    mr__buf_puts(sql, " > c.last_position ORDER BY ev.");
    mr__rows_column(sql, shape, MR_COL_POSITION);
    mr__buf_puts(sql, " LIMIT 1) e ON true");
}

/* The log's head, dead letters by consumer, and who there is: whoever has a checkpoint or an
 * assignment, or waits for its own lock in a living worker. */
static void put_names(mr_buf *sql, const mr_names *names, const mr_log_shape *shape)
{
    mr__buf_puts(sql, ", head AS MATERIALIZED (SELECT coalesce(max(");
    mr__rows_column(sql, shape, MR_COL_POSITION);
    mr__buf_puts(sql, "), 0)::int8 AS head FROM ");
    mr__qname_quote(sql, &shape->table);
    mr__buf_puts(sql, "), letter AS MATERIALIZED (SELECT consumer_name, count(*) AS n FROM ");
    mr__qname_quote(sql, &names->table[MR_TABLE_DEAD_LETTERS]);
    mr__buf_puts(sql, " GROUP BY 1), name AS (SELECT consumer_name FROM ");
    mr__qname_quote(sql, &names->table[MR_TABLE_CHECKPOINTS]);
    mr__buf_puts(sql, " UNION SELECT consumer_name FROM ");
    mr__qname_quote(sql, &names->table[MR_TABLE_ASSIGNMENTS]);
    mr__buf_puts(sql, " UNION SELECT jsonb_array_elements_text(w.locks) FROM worker w"
                      " WHERE w.state = 'alive')");
}

/* The owner `w`: who it is assigned to or, of a consumer with a lock of its own (`a` has no
 * worker), who says that it runs it. A silent worker may well hold that lock; one that is gone does
 * not. */
static void put_owner(mr_buf *sql)
{
    mr__buf_puts(sql,
                 " LEFT JOIN LATERAL (SELECT w.* FROM worker w WHERE CASE"
                 " WHEN a.worker_id IS NOT NULL THEN w.worker_id = a.worker_id"
                 " ELSE w.state NOT IN ('gone', 'dead') AND w.info->'consumers' ? m.consumer_name"
                 " AND (a.consumer_name IS NULL OR w.locks ? m.consumer_name) END"
                 " ORDER BY w.state = 'silent', w.heartbeat_age, w.worker_id LIMIT 1) w ON true");
}

/* Columns of `fact` that come from the consumer's name. */
static void put_slot(mr_buf *sql)
{
    mr__buf_puts(sql, MR_LIST_BASE("m.consumer_name"));
    mr__buf_puts(sql, " AS base,"
                      " substring(m.consumer_name from '#([0-9]{1,9})/[0-9]{1,9}$')::int4 AS slot,"
                      " coalesce(substring(m.consumer_name from '#[0-9]{1,9}/([0-9]{1,9})$')::int4,"
                      " 1) AS partitions,");
}

/* What is known of each consumer, as relation `fact`. */
static void put_facts(mr_buf *sql, const mr_names *names, const mr_log_shape *shape)
{
    mr__buf_puts(sql, ", fact AS MATERIALIZED (SELECT m.consumer_name AS consumer, ");
    put_slot(sql);
    mr__buf_puts(
        sql, shape->column[MR_COL_CREATED_AT][0] == '\0'
                 ? " NULL::numeric"
                 : " CASE WHEN c.last_position IS NOT NULL AND e.position IS NULL THEN 0 ELSE"
                   " round(extract(epoch FROM greatest(pg_catalog.clock_timestamp() - e.created_at,"
                   " interval '0'))::numeric, 1) END");
    mr__buf_puts(
        sql, " AS lag_seconds, w.worker_id, w.host, w.pid, w.state AS owner_state,"
             " c.last_position AS checkpoint, h.head,"
             " greatest(h.head - c.last_position, 0) AS lag, c.updated_at,"
             " w.info->'consumers'->m.consumer_name AS place,"
             " coalesce(k.paused, false) AS paused, k.pause_kind, k.paused_by, k.paused_at,"
             " k.pause_reason, k.last_error AS noted_error, k.last_error_at, k.last_error_position,"
             " coalesce(d.n, 0) AS dead_letters,"
             " CASE WHEN a.consumer_name IS NULL OR a.worker_id IS NULL AND EXISTS"
             " (SELECT FROM worker o WHERE o.state <> 'dead' AND o.locks ? m.consumer_name)"
             " THEN 'lock' ELSE 'assignment' END AS ownership,"
             /* A hole that is just being decided is no news: a busy log has one all the time. */
             " e.position > c.last_position + 1 AND greatest(c.updated_at, e.created_at)"
             " < pg_catalog.clock_timestamp() - interval '1 second' AS blocked"
             " FROM name m CROSS JOIN head h LEFT JOIN ");
    mr__qname_quote(sql, &names->table[MR_TABLE_CHECKPOINTS]);
    mr__buf_puts(sql, " c ON c.consumer_name = m.consumer_name LEFT JOIN ");
    mr__qname_quote(sql, &names->table[MR_TABLE_ASSIGNMENTS]);
    mr__buf_puts(sql, " a ON a.consumer_name = m.consumer_name LEFT JOIN ");
    mr__qname_quote(sql, &names->table[MR_TABLE_CONTROLS]);
    mr__buf_puts(sql, " k ON k.consumer_name = m.consumer_name"
                      " LEFT JOIN letter d ON d.consumer_name = m.consumer_name");
    put_owner(sql);
    put_next_event(sql, shape);
    mr__buf_puts(sql, ")");
}

/* Facts and the state they add up to. What only the owner knows (failing, and a pause that it has
 * not written yet) is as old as its last heartbeat; the rest is read now. */
void mr__relation_consumers(mr_buf *sql, const mr_names *names, const mr_log_shape *shape)
{
    mr__relation_workers(sql, names);
    put_names(sql, names, shape);
    put_facts(sql, names, shape);
    mr__buf_puts(
        sql, ", consumer AS MATERIALIZED (SELECT f.*, CASE"
             " WHEN f.paused THEN coalesce(f.pause_reason, f.place->>'error', f.noted_error)"
             " ELSE coalesce(f.place->>'error', f.noted_error) END AS last_error, CASE"
             " WHEN f.paused THEN 'paused'"
             " WHEN f.worker_id IS NULL AND EXISTS (SELECT FROM worker w WHERE w.state = 'alive')"
             " AND NOT EXISTS (SELECT FROM worker w WHERE w.state = 'alive'"
             " AND (f.consumer = ANY(w.consumers) OR w.locks ? f.consumer))"
             " THEN 'no worker can run it'"
             " WHEN f.worker_id IS NULL THEN 'unassigned'"
             " WHEN f.owner_state = 'silent' THEN 'owner silent'"
             " WHEN f.owner_state IN ('gone', 'dead') THEN 'owner gone'"
             /* A pause is in the controls, or on its way there; a resume is there before the owner
              * has heard of it. */
             " WHEN f.place->>'state' = 'paused' AND f.paused IS NULL THEN 'paused'"
             " WHEN (f.place->>'failures')::int4 > 0 THEN 'failing'"
             " WHEN f.blocked THEN 'blocked'"
             " WHEN f.lag > 0 THEN 'running'"
             " ELSE 'idle' END AS state FROM fact f)");
}
