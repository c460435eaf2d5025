/* The listing "queues": those of the configuration with their tables, those of the built-in table
 * that the database knows, and those that only workers know. */
#include "runtime/api_queue.h"

#include "cluster/template.h"
#include "queue/operate.h"
#include "queue/own.h"
#include "runtime/conf_queue.h"

#include <inttypes.h>

/* ---- Queues on a table of the user's --------------------------------------------------------- */

/* A queue whose table does not fit is told as that; the others are listed all the same. */
static mr_error *put_queue(PGconn *conn, const mr_conf *conf, const mr_queue *queue, mr_buf *sql)
{
    mr_queue_store *store = NULL;
    mr_error *error = mr__api_queue_open(conn, conf, queue, &store);
    if (error == NULL) {
        error = mr__queue_summary(conn, store, sql);
        mr__queue_close(store);
        return error;
    }
    if (mr_error_code(error) != MR_E_CONFIG)
        return error;
    mr__queue_summary_broken(mr__bag_text(&queue->bag, MR_OPT_Q_NAME),
                             mr__bag_text(&queue->bag, MR_OPT_Q_TABLE), mr_error_message(error),
                             sql);
    mr_error_free(error);
    return NULL;
}

static mr_error *put_mapped(PGconn *conn, const mr_conf *conf, mr_buf *sql)
{
    bool first = true;
    for (size_t i = 0; i < conf->queue_count; i++) {
        if (mr__queue_builtin(conf->queues[i]))
            continue;
        mr__buf_puts(sql, first ? "SELECT mr_one.* FROM (" : " UNION ALL SELECT mr_one.* FROM (");
        MR_TRY(put_queue(conn, conf, conf->queues[i], sql));
        mr__buf_puts(sql, ") AS mr_one");
        first = false;
    }
    if (first) {
        mr__buf_puts(sql, "SELECT mr_one.* FROM (");
        mr__queue_summary_broken("", "", "", sql);
        mr__buf_puts(sql, ") AS mr_one WHERE false");
    }
    return NULL;
}

/* ---- Queues of the built-in table ------------------------------------------------------------ */

/* ", ('name', lease)" for those of the conf. */
static void put_described(const mr_conf *conf, mr_buf *sql)
{
    for (size_t i = 0; i < conf->queue_count; i++) {
        if (!mr__queue_builtin(conf->queues[i]))
            continue;
        mr__buf_puts(sql, ", (");
        mr__literal_quote(sql, mr_conf_queue_name(conf, i));
        mr__buf_printf(sql, ", %" PRId64 ")", mr__queue_policy_of(conf->queues[i]).stalled_max_age);
    }
}

/* Relation `own`: the names, each with its lease in microseconds. */
static void put_own(const mr_conf *conf, const mr_names *names, mr_buf *sql)
{
    mr__buf_puts(sql, ", own AS (SELECT n.name, coalesce(d.lease, ");
    mr__buf_printf(sql, "%" PRId64, MR_OWN_LEASE);
    mr__buf_puts(sql, ") AS lease FROM (SELECT k.name FROM ");
    mr__names_function(names, "known_queues", sql);
    mr__buf_puts(sql, "() AS k(name) UNION SELECT m.name FROM (VALUES (NULL::text, NULL::int8)");
    put_described(conf, sql);
    mr__buf_puts(sql, ") AS m(name, lease)) AS n LEFT JOIN (VALUES (NULL::text, NULL::int8)");
    put_described(conf, sql);
    mr__buf_puts(sql, ") AS d(name, lease) ON d.name = n.name WHERE n.name IS NOT NULL"
                      " AND NOT EXISTS (SELECT FROM mapped AS p WHERE p.queue = n.name))");
}

/* ---- All of them ----------------------------------------------------------------------------- */

mr_error *mr__list_queues(PGconn *conn, const mr_conf *conf, const mr_list_input *input,
                          PGresult **rows)
{
    MR_TRY(mr__own_require(conn, input->names));
    MR_AUTO_BUF jobs = {0};
    mr__qname_quote(&jobs, &input->names->table[MR_TABLE_JOBS]);
    MR_AUTO_BUF sql = {0};
    mr__relation_workers(&sql, input->names);
    mr__buf_puts(&sql, ", mapped AS MATERIALIZED (");
    MR_TRY(put_mapped(conn, conf, &sql));
    mr__buf_puts(&sql, ")");
    put_own(conf, input->names, &sql);
    mr__buf_puts(&sql, " SELECT q.queue, q.\"table\", q.queued, q.errored, q.processing,"
                       " q.completed, q.failed, q.canceled, q.stalled,"
                       " CASE WHEN NOT q.rough ? 'oldest_wait_seconds'"
                       " THEN q.oldest_wait_seconds END AS oldest_wait_seconds,"
                       " (SELECT count(*) FROM worker w WHERE w.state = 'alive'"
                       " AND q.queue = ANY (w.queues)) AS workers, q.rough, q.problem, q.kind,"
                       " coalesce(c.paused, false) AS paused, c.paused_by, c.paused_at,"
                       " c.pause_reason, q.ready, q.blocked, q.later, q.waiting, q.held FROM ("
                       "SELECT p.*, 'table' AS kind, NULL::int8 AS ready, NULL::int8 AS blocked,"
                       " NULL::int8 AS later, NULL::int8 AS waiting, NULL::int8 AS held"
                       " FROM mapped AS p"
                       " UNION ALL SELECT o.name, ");
    mr__literal_quote(&sql, mr__buf_text(&jobs));
    mr__buf_printf(&sql,
                   ", least(f.queued, 10000), least(f.errored, 10000), least(f.processing, 10000),"
                   " NULL, least(f.failed, 10000), NULL, least(f.stalled, 10000),"
                   " f.oldest_wait_seconds, f.rough, NULL, 'jobs', least(f.ready, 10000),"
                   " least(f.blocked, 10000), least(f.later, 10000), least(f.waiting, 10000),"
                   " least(f.held, 10000) FROM own AS o CROSS JOIN LATERAL ");
    mr__names_function(input->names, "queue_figures", &sql);
    mr__buf_puts(&sql, "(o.name, 10000, o.lease * interval '1 microsecond') AS f"
                       " UNION ALL SELECT u.name, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
                       " NULL, '{}', NULL, 'unknown', NULL, NULL, NULL, NULL, NULL"
                       " FROM (SELECT DISTINCT unnest(w.queues) AS name FROM worker w"
                       " WHERE w.state = 'alive') AS u"
                       " WHERE NOT EXISTS (SELECT FROM own AS o WHERE o.name = u.name)"
                       " AND NOT EXISTS (SELECT FROM mapped AS p WHERE p.queue = u.name)"
                       ") AS q LEFT JOIN ");
    mr__qname_quote(&sql, &input->names->table[MR_TABLE_QUEUE_CONTROLS]);
    mr__buf_puts(&sql, " AS c ON c.queue = q.queue AND q.kind = 'jobs'"
                       " WHERE $2::int8 IS NOT NULL ORDER BY array_position(ARRAY[NULL");
    for (size_t i = 0; i < conf->queue_count; i++) {
        mr__buf_puts(&sql, ", ");
        mr__literal_quote(&sql, mr_conf_queue_name(conf, i));
    }
    mr__buf_puts(&sql, "]::text[], q.queue), q.queue");
    return mr__list_run(conn, input, &sql, 2, rows);
}
