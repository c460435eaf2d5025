/* Listings for people and scripts, straight from the database. */
#include "observe/listing.h"

#include "log/reader_sql.h"
#include "pg/conn.h"

#include <string.h>

/* The audit of skipped positions, newest first. */
static void put_gaps_list(mr_buf *sql, const mr_names *names)
{
    mr__buf_puts(sql, "SELECT id, consumer_name AS consumer, gap_position, gap_end,"
                      " gap_end - gap_position + 1 AS positions, highest_visible_position,"
                      " strategy, reason, first_seen_at, created_at, worker_id FROM ");
    mr__qname_quote(sql, &names->table[MR_TABLE_GAP_SKIPS]);
    mr__buf_puts(sql, " ORDER BY id DESC LIMIT 1000");
}

/* The first hole after each checkpoint, and who holds a lock that could still fill it. One row for
 * each hole and holder; without a holder the hole is about to be settled. */
static void put_gaps_open(mr_buf *sql, const mr_names *names, const mr_log_shape *shape)
{
    MR_AUTO_BUF position = {0};
    mr__rows_column(&position, shape, MR_COL_POSITION);
    MR_AUTO_BUF table = {0};
    mr__qname_quote(&table, &shape->table);
    MR_AUTO_BUF checkpoints = {0};
    mr__qname_quote(&checkpoints, &names->table[MR_TABLE_CHECKPOINTS]);
    mr__buf_printf(
        sql,
        "WITH hole AS ("
        " SELECT g.first AS gap_position, min(g.next) - 1 AS gap_end,"
        " string_agg(c.consumer_name, ', ' ORDER BY c.consumer_name) AS consumers"
        " FROM %s c CROSS JOIN LATERAL ("
        "  SELECT c.last_position + n.rank AS first, n.position AS next FROM ("
        "   SELECT e.%s AS position, row_number() OVER (ORDER BY e.%s) AS rank FROM ("
        "    SELECT %s FROM %s WHERE %s > c.last_position ORDER BY 1 LIMIT 10000) e) n"
        "  WHERE n.position <> c.last_position + n.rank ORDER BY n.position LIMIT 1) g"
        " GROUP BY g.first), "
        "holder AS (SELECT DISTINCT ON (l.virtualtransaction) l.virtualtransaction, l.pid",
        mr__buf_text(&checkpoints), mr__buf_text(&position), mr__buf_text(&position),
        mr__buf_text(&position), mr__buf_text(&table), mr__buf_text(&position));
    mr__reader_sql_holders(sql, shape);
    mr__buf_puts(
        sql,
        " ORDER BY l.virtualtransaction) "
        "SELECT h.gap_position, h.gap_end, h.consumers, o.pid,"
        " round(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, "
        "p.prepared))::numeric, 1)"
        " AS age_seconds,"
        " CASE WHEN o.pid IS NULL AND o.virtualtransaction IS NOT NULL THEN 'prepared'"
        " ELSE a.state END AS state,"
        " a.application_name AS application, coalesce(a.usename, p.owner)::text AS \"user\","
        " coalesce(a.client_addr::text, CASE WHEN a.pid IS NOT NULL THEN 'local' END) AS client,"
        " coalesce(left(a.query, 200), 'PREPARE TRANSACTION ' || quote_literal(p.gid)) AS query"
        " FROM hole h LEFT JOIN holder o ON true"
        " LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = o.pid"
        /* A prepared transaction keeps its backend's local number in its name; the lock on its own
         * id tells which one it is. */
        " LEFT JOIN pg_catalog.pg_locks t ON o.pid IS NULL AND t.pid IS NULL"
        " AND t.locktype = 'transactionid' AND t.virtualtransaction = o.virtualtransaction"
        " LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = t.transactionid"
        " ORDER BY h.gap_position, age_seconds DESC NULLS LAST");
}

static void put_consumers(mr_buf *sql, const mr_names *names, const mr_log_shape *shape)
{
    mr__buf_puts(sql, "SELECT c.consumer_name AS consumer, c.last_position AS checkpoint, h.head,"
                      " greatest(h.head - c.last_position, 0) AS lag, c.updated_at FROM ");
    mr__qname_quote(sql, &names->table[MR_TABLE_CHECKPOINTS]);
    mr__buf_puts(sql, " c CROSS JOIN (SELECT coalesce(max(");
    mr__rows_column(sql, shape, MR_COL_POSITION);
    mr__buf_puts(sql, "), 0)::int8 AS head FROM ");
    mr__qname_quote(sql, &shape->table);
    mr__buf_puts(sql, ") h ORDER BY 1");
}

mr_error *mr__list_rows(PGconn *conn, const mr_names *names, const mr_log_spec *log,
                        const char *what, PGresult **rows)
{
    MR_AUTO_BUF sql = {0};
    mr_log_shape shape;
    if (strcmp(what, "gaps.list") == 0) {
        put_gaps_list(&sql, names);
    } else if (strcmp(what, "gaps.open") == 0) {
        MR_TRY(mr__log_shape_read(conn, log, &shape));
        put_gaps_open(&sql, names, &shape);
    } else if (strcmp(what, "consumers") == 0) {
        MR_TRY(mr__log_shape_read(conn, log, &shape));
        put_consumers(&sql, names, &shape);
    } else {
        return mr__error(MR_E_USAGE, "there is no listing '%s'", what);
    }
    if (sql.failed)
        return mr__error_nomem();
    mr_error *error = mr__pg_query(conn, rows, sql.data, 0, NULL);
    const char *state = mr_error_sqlstate(error);
    if (strcmp(state, "42P01") != 0 && strcmp(state, "3F000") != 0)
        return error;
    mr_error_free(error);
    return mr__error(MR_E_SCHEMA,
                     "Millrace's tables are not in this database; run: millrace schema "
                     "apply");
}
