/* The statements behind `workers list`, `consumers list` and `status`. */
#include "observe/listing.h"

void mr__list_workers(mr_buf *sql, const mr_names *names)
{
    mr__relation_workers(sql, names);
    mr__buf_puts(sql,
                 " SELECT w.worker_id, w.state, w.leader, w.host, w.pid, w.version, w.started_at,"
                 " w.heartbeat_age, (SELECT count(*) FROM ");
    mr__qname_quote(sql, &names->table[MR_TABLE_ASSIGNMENTS]);
    mr__buf_puts(sql, " a WHERE a.worker_id = w.worker_id) +"
                      /* and those that it holds by their own locks */
                      " (SELECT count(*) FROM jsonb_array_elements_text(w.locks) l(name)"
                      " WHERE w.state NOT IN ('gone', 'dead') AND w.info->'consumers' ? l.name)"
                      " AS owned,"
                      " (SELECT count(*) FROM (SELECT unnest(w.consumers)"
                      " UNION SELECT jsonb_array_elements_text(w.locks)) u)::int4 AS can_run,"
                      " (w.info->>'connections')::int8 AS connections,"
                      " (w.info->>'events')::int8 AS events,"
                      " to_jsonb(w.queues) AS queues FROM worker w ORDER BY w.worker_id");
}

void mr__list_consumers(mr_buf *sql, const mr_names *names, const mr_log_shape *shape)
{
    mr__relation_consumers(sql, names, shape);
    mr__buf_puts(sql, " SELECT c.consumer, c.state, c.worker_id, c.host, c.pid, c.checkpoint,"
                      " c.head, c.lag, c.lag_seconds, c.last_error, c.updated_at,"
                      " CASE WHEN c.paused THEN c.paused_by END AS paused_by,"
                      " CASE WHEN c.paused THEN c.pause_reason END AS pause_reason,"
                      " c.dead_letters, c.partitions, c.base, c.ownership,"
                      " CASE WHEN c.paused THEN c.pause_kind END AS pause_kind,"
                      " CASE WHEN c.paused THEN c.paused_at END AS paused_at,"
                      " c.last_error_at, c.last_error_position"
                      " FROM consumer c ORDER BY c.base, c.partitions, c.slot, c.consumer");
}

/* What a consumer that is not well says of itself, without its name. */
static void put_complaint(mr_buf *sql)
{
    mr__buf_puts(sql, "c.state || CASE WHEN c.paused AND c.pause_kind = 'command'"
                      " THEN coalesce(' by ' || c.paused_by, '') ELSE '' END ||"
                      " CASE WHEN c.state IN ('paused', 'failing')"
                      " THEN coalesce(': ' || c.last_error, '') ELSE '' END");
}

/* One sentence for each thing that makes the fleet unhealthy, as relation `problem`; slots of a
 * consumer that say the same share one. A hole is none: it passes by itself once the transaction
 * that holds it ends, and lag shows what it costs. */
static void put_problems(mr_buf *sql)
{
    mr__buf_puts(
        sql, ", living AS (SELECT FROM worker w WHERE w.state = 'alive'), "
             "problem AS (SELECT 1 AS rank, 'no worker is alive, and there are consumers' AS what"
             " WHERE EXISTS (SELECT FROM consumer) AND NOT EXISTS (SELECT FROM living)"
             " UNION ALL SELECT 2, 'there is no leader' WHERE EXISTS (SELECT FROM living)"
             " AND NOT EXISTS (SELECT FROM worker w WHERE w.leader AND w.state <> 'silent')"
             " UNION ALL SELECT 3, 'consumer ' || t.base || ': ' || t.what || CASE WHEN"
             " t.partitions > 1 THEN ' (' || t.n || ' of ' || t.partitions || ' slots)' ELSE '' END"
             " FROM (SELECT c.base, c.partitions, count(*) AS n, ");
    put_complaint(sql);
    mr__buf_puts(sql,
                 " AS what FROM consumer c WHERE c.state NOT IN ('idle', 'running', 'blocked')"
                 /* Said once already, for all of them. */
                 " AND (c.state <> 'unassigned' OR EXISTS (SELECT FROM living)) GROUP BY 1, 2, 4) t"
                 " UNION ALL SELECT 4, 'consumer ' || c.base || ': lag ' || max(c.lag) ||"
                 " ' is above lag_threshold ' || $3::int8 FROM consumer c"
                 " WHERE $3::int8 >= 0 AND c.lag > $3::int8 GROUP BY c.base"
                 " UNION ALL SELECT 5, 'consumer ' || t.base || ': ' || t.n || ' dead letter' ||"
                 " CASE WHEN t.n = 1 THEN '' ELSE 's' END || '; see millrace dead-letters list'"
                 " FROM (SELECT ");
    mr__buf_puts(sql, MR_LIST_BASE("d.consumer_name"));
    mr__buf_puts(sql, " AS base, sum(d.n) AS n FROM letter d GROUP BY 1) t"
                      " UNION ALL SELECT DISTINCT 6, 'queue ' || q.key || ': its jobs cannot run: '"
                      " || coalesce(q.value->>'error', '') FROM worker w CROSS JOIN LATERAL"
                      " jsonb_each(coalesce(w.info->'queues', '{}')) q"
                      " WHERE w.state = 'alive' AND (q.value->>'sick')::bool)");
}

void mr__list_status(mr_buf *sql, const mr_names *names, const mr_log_shape *shape)
{
    mr__relation_consumers(sql, names, shape);
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
             " (SELECT coalesce(sum(d.n), 0)::int8 FROM letter d) AS dead_letters,"
             " $4::int4 AS schema_version,"
             " (SELECT coalesce(jsonb_agg(p.what ORDER BY p.rank, p.what), '[]') FROM problem p)"
             " AS problems FROM head h");
}
