/* The health report: one statement over the relations of the listings, which gives the JSON.
 *
 * It agrees with `status` on what is wrong, with one difference: a consumer that waits before a
 * hole is a reason here, since a program that watches wants to know, and no problem there, since
 * nobody has to do anything. */
#include "observe/health.h"

#include "pg/conn.h"

#include <string.h>

/* What is wrong with the fleet as a whole. */
static void put_fleet_reasons(mr_buf *sql)
{
    mr__buf_puts(sql,
                 ", living AS (SELECT FROM worker w WHERE w.state = 'alive'), "
                 "reason AS (SELECT 1 AS rank, NULL::text AS consumer, 'no_worker' AS reason,"
                 " 'no worker is alive, and there are consumers' AS detail"
                 " WHERE EXISTS (SELECT FROM consumer) AND NOT EXISTS (SELECT FROM living)"
                 " UNION ALL SELECT 2, NULL, 'no_leader', 'workers are alive, and none leads'"
                 " WHERE EXISTS (SELECT FROM living)"
                 " AND NOT EXISTS (SELECT FROM worker w WHERE w.leader AND w.state <> 'silent')");
}

/* What is wrong with each consumer or slot. Dead letters count also for a consumer that is no more:
 * nobody has decided about them. */
static void put_consumer_reasons(mr_buf *sql)
{
    mr__buf_puts(
        sql,
        " UNION ALL SELECT 3, c.consumer, CASE WHEN c.state IN ('paused', 'failing', 'blocked')"
        " THEN c.state ELSE 'no_owner' END, CASE c.state"
        " WHEN 'paused' THEN 'paused' || coalesce(' by ' || c.paused_by, '') ||"
        " coalesce(' since ' || c.paused_at, '') || coalesce(': ' || c.last_error, '')"
        " WHEN 'failing' THEN coalesce(c.last_error, 'its last batch failed')"
        " WHEN 'blocked' THEN 'waits before position ' || c.checkpoint + 1 ||"
        " ', which a transaction may still fill; see millrace gaps open'"
        " ELSE c.state END FROM consumer c WHERE c.state NOT IN ('idle', 'running')"
        " AND (c.state <> 'unassigned' OR EXISTS (SELECT FROM living))"
        " UNION ALL SELECT 4, c.consumer, 'lag', c.lag || ' positions behind the head, above"
        " lag_threshold ' || $3::int8 FROM consumer c"
        " WHERE $3::int8 >= 0 AND c.lag > $3::int8"
        " UNION ALL SELECT 5, d.consumer_name, 'dead_letters', d.n || ' dead letter' ||"
        " CASE WHEN d.n = 1 THEN '' ELSE 's' END || '; see millrace dead-letters list'"
        " FROM letter d"
        " UNION ALL SELECT DISTINCT 6, NULL, 'queue', 'queue ' || q.key ||"
        " ': its jobs cannot run: ' || coalesce(q.value->>'error', '') FROM worker w"
        " CROSS JOIN LATERAL jsonb_each(coalesce(w.info->'queues', '{}')) q"
        " WHERE w.state = 'alive' AND (q.value->>'sick')::bool)");
}

static void put_report(mr_buf *sql)
{
    mr__buf_puts(
        sql, " SELECT json_build_object("
             "'status', CASE WHEN EXISTS (SELECT FROM reason) THEN 'degraded' ELSE 'healthy' END,"
             " 'reasons', coalesce((SELECT json_agg(json_build_object('consumer', r.consumer,"
             " 'reason', r.reason, 'detail', r.detail) ORDER BY r.rank, r.consumer, r.reason)"
             " FROM reason r), '[]'),"
             " 'consumers', coalesce((SELECT json_agg(json_build_object('name', c.consumer,"
             " 'state', c.state, 'lag', c.lag, 'checkpoint', c.checkpoint, 'head', c.head,"
             " 'dead_letters', c.dead_letters) ORDER BY c.base, c.partitions, c.slot, c.consumer)"
             " FROM consumer c), '[]'),"
             " 'head', h.head,"
             " 'workers_alive', (SELECT count(*) FROM worker w WHERE w.state = 'alive'))::text"
             " FROM head h");
}

mr_error *mr__health(PGconn *conn, const mr_list_input *input, char **json)
{
    mr_log_shape shape;
    MR_TRY(mr__log_shape_read(conn, input->log, &shape));
    MR_AUTO_BUF sql = {0};
    mr__relation_consumers(&sql, input->names, &shape);
    put_fleet_reasons(&sql);
    put_consumer_reasons(&sql);
    put_report(&sql);
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__list_run(conn, input, &sql, 3, &rows));
    char *text = strdup(PQgetvalue(rows, 0, 0));
    if (text == NULL)
        return mr__error_nomem();
    *json = text;
    return NULL;
}
