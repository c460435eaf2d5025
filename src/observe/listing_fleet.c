/* The statements behind `workers list`, `consumers list` and `status`.
 *
 * Their cost does not grow with the log: its head and the first event after each checkpoint come
 * from the index on the position. */
#include "observe/listing.h"

#include "log/rows.h"

/* Workers with the state one sees from outside, as relation `worker`. The dead say so in their row;
 * who lost the session lock is gone; who holds it but does not stamp its row is silent. The leader
 * is who holds the leader's lock in the session that holds its own, or the lease: whichever the
 * fleet uses, so that a listing need not be told. */
static void put_workers(mr_buf *sql, const mr_names *names)
{
    mr__buf_puts(
        sql, "WITH held AS MATERIALIZED ("
             " SELECT l.pid, (l.classid::int8 << 32) | l.objid::int8 AS lock_id"
             " FROM pg_catalog.pg_locks l"
             " WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted"
             " AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d"
             " WHERE d.datname = pg_catalog.current_database())), "
             "worker AS MATERIALIZED (SELECT n.worker_id, n.host, n.pid, n.version, n.started_at,"
             " n.consumers, n.info,"
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

void mr__list_workers(mr_buf *sql, const mr_names *names)
{
    put_workers(sql, names);
    mr__buf_puts(sql,
                 " SELECT w.worker_id, w.state, w.leader, w.host, w.pid, w.version, w.started_at,"
                 " w.heartbeat_age, (SELECT count(*) FROM ");
    mr__qname_quote(sql, &names->table[MR_TABLE_ASSIGNMENTS]);
    mr__buf_puts(sql, " a WHERE a.worker_id = w.worker_id) AS owned,"
                      " cardinality(w.consumers) AS can_run,"
                      " (w.info->>'connections')::int8 AS connections,"
                      " (w.info->>'events')::int8 AS events FROM worker w ORDER BY w.worker_id");
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

/* What is known of each consumer, as relation `fact`: whoever has a checkpoint or an assignment. */
static void put_facts(mr_buf *sql, const mr_names *names, const mr_log_shape *shape)
{
    MR_AUTO_BUF checkpoints = {0};
    mr__qname_quote(&checkpoints, &names->table[MR_TABLE_CHECKPOINTS]);
    MR_AUTO_BUF assignments = {0};
    mr__qname_quote(&assignments, &names->table[MR_TABLE_ASSIGNMENTS]);
    mr__buf_puts(sql, ", head AS MATERIALIZED (SELECT coalesce(max(");
    mr__rows_column(sql, shape, MR_COL_POSITION);
    mr__buf_puts(sql, "), 0)::int8 AS head FROM ");
    mr__qname_quote(sql, &shape->table);
    mr__buf_printf(
        sql,
        "), name AS (SELECT consumer_name FROM %s UNION SELECT consumer_name FROM %s), "
        "fact AS MATERIALIZED (SELECT m.consumer_name AS consumer, w.worker_id, w.host, w.pid,"
        " w.state AS owner_state, c.last_position AS checkpoint, h.head,"
        " greatest(h.head - c.last_position, 0) AS lag, e.position AS next_position, %s AS "
        "lag_seconds,"
        " c.updated_at, w.info->'consumers'->m.consumer_name AS place, k.paused, k.last_error,"
        /* A hole that is just being decided is no news: a busy log has one all the time. */
        " e.position > c.last_position + 1 AND greatest(c.updated_at, e.created_at)"
        " < pg_catalog.clock_timestamp() - interval '1 second' AS blocked"
        " FROM name m CROSS JOIN head h"
        " LEFT JOIN %s c ON c.consumer_name = m.consumer_name"
        " LEFT JOIN %s a ON a.consumer_name = m.consumer_name"
        " LEFT JOIN worker w ON w.worker_id = a.worker_id LEFT JOIN ",
        mr__buf_text(&checkpoints), mr__buf_text(&assignments),
        shape->column[MR_COL_CREATED_AT][0] == '\0'
            ? "NULL::numeric"
            : "CASE WHEN c.last_position IS NOT NULL AND e.position IS NULL THEN 0 ELSE"
              " round(extract(epoch FROM greatest(pg_catalog.clock_timestamp() - e.created_at,"
              " interval '0'))::numeric, 1) END",
        mr__buf_text(&checkpoints), mr__buf_text(&assignments));
    mr__qname_quote(sql, &names->table[MR_TABLE_CONTROLS]);
    mr__buf_puts(sql, " k ON k.consumer_name = m.consumer_name");
    put_next_event(sql, shape);
    mr__buf_puts(sql, ")");
}

/* Facts and the state they add up to, as relation `consumer`. What only the owner knows (paused,
 * failing) is as old as its last heartbeat; the rest is read now. */
static void put_consumers(mr_buf *sql, const mr_names *names, const mr_log_shape *shape)
{
    put_workers(sql, names);
    put_facts(sql, names, shape);
    mr__buf_puts(
        sql, ", consumer AS MATERIALIZED (SELECT f.*, CASE"
             " WHEN f.paused THEN 'paused'"
             " WHEN f.worker_id IS NULL AND EXISTS (SELECT FROM worker w WHERE w.state = 'alive')"
             " AND NOT EXISTS (SELECT FROM worker w WHERE w.state = 'alive'"
             " AND f.consumer = ANY(w.consumers)) THEN 'no worker can run it'"
             " WHEN f.worker_id IS NULL THEN 'unassigned'"
             " WHEN f.owner_state = 'silent' THEN 'owner silent'"
             " WHEN f.owner_state IN ('gone', 'dead') THEN 'owner gone'"
             " WHEN f.place->>'state' = 'paused' THEN 'paused'"
             " WHEN (f.place->>'failures')::int4 > 0 THEN 'failing'"
             " WHEN f.blocked THEN 'blocked'"
             " WHEN f.lag > 0 THEN 'running'"
             " ELSE 'idle' END AS state FROM fact f)");
}

void mr__list_consumers(mr_buf *sql, const mr_names *names, const mr_log_shape *shape)
{
    put_consumers(sql, names, shape);
    mr__buf_puts(sql, " SELECT c.consumer, c.state, c.worker_id, c.host, c.pid, c.checkpoint,"
                      " c.head, c.lag, c.lag_seconds,"
                      " coalesce(c.place->>'error', c.last_error) AS last_error, c.updated_at"
                      " FROM consumer c ORDER BY c.consumer");
}

/* One sentence for each thing that makes the fleet unhealthy, as relation `problem`. A hole is
 * none: it passes by itself once the transaction that holds it ends, and lag shows what it costs.
 */
static void put_problems(mr_buf *sql)
{
    mr__buf_puts(
        sql, ", living AS (SELECT FROM worker w WHERE w.state = 'alive'), "
             "problem AS (SELECT 1 AS rank, 'no worker is alive, and there are consumers' AS what"
             " WHERE EXISTS (SELECT FROM consumer) AND NOT EXISTS (SELECT FROM living)"
             " UNION ALL SELECT 2, 'there is no leader' WHERE EXISTS (SELECT FROM living)"
             " AND NOT EXISTS (SELECT FROM worker w WHERE w.leader AND w.state <> 'silent')"
             " UNION ALL SELECT 3, 'consumer ' || c.consumer || ': ' || c.state ||"
             " coalesce(': ' || coalesce(c.place->>'error', c.last_error), '') FROM consumer c"
             " WHERE c.state NOT IN ('idle', 'running', 'blocked')"
             /* Said once already, for all of them. */
             " AND (c.state <> 'unassigned' OR EXISTS (SELECT FROM living)))");
}

void mr__list_status(mr_buf *sql, const mr_names *names, const mr_log_shape *shape)
{
    put_consumers(sql, names, shape);
    put_problems(sql);
    mr__buf_puts(
        sql, " SELECT NOT EXISTS (SELECT FROM problem) AS healthy,"
             " (SELECT count(*) FROM worker w WHERE w.state = 'alive') AS workers_alive,"
             " (SELECT coalesce(jsonb_object_agg(s.state, s.n), '{}') FROM (SELECT w.state, "
             "count(*) AS n"
             " FROM worker w GROUP BY 1) s) AS workers,"
             " (SELECT w.worker_id FROM worker w WHERE w.leader ORDER BY 1 LIMIT 1) AS leader,"
             " (SELECT coalesce(jsonb_object_agg(s.state, s.n), '{}') FROM (SELECT c.state, "
             "count(*) AS n"
             " FROM consumer c GROUP BY 1) s) AS consumers,"
             " h.head, (SELECT coalesce(max(c.lag), 0) FROM consumer c) AS max_lag,"
             " (SELECT max(c.lag_seconds) FROM consumer c) AS max_lag_seconds,"
             " (SELECT count(DISTINCT c.checkpoint) FROM consumer c WHERE c.blocked) AS open_holes,"
             " (SELECT count(*) FROM ");
    mr__qname_quote(sql, &names->table[MR_TABLE_DEAD_LETTERS]);
    mr__buf_puts(
        sql, ") AS dead_letters, $3::int4 AS schema_version,"
             " (SELECT coalesce(jsonb_agg(p.what ORDER BY p.rank, p.what), '[]') FROM problem p)"
             " AS problems FROM head h");
}
