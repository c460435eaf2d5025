/* Listings for people and scripts, straight from the database. */
#include "observe/listing.h"

#include "cluster/schema.h"
#include "log/reader_sql.h"
#include "pg/conn.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Gaps ---------------------------------------------------------------------------------- */

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

/* ---- The fleet ----------------------------------------------------------------------------- */

/* Values of the parameters that statements over the fleet share. */
enum { FLEET_PARAMETERS = 4, WITH_VERSION = 4 };
typedef struct fleet_values {
    char timeout[40], leader_key[24], lag[24], version[16];
} fleet_values;

static mr_error *make_values(PGconn *conn, const mr_list_input *input, int count, fleet_values *out)
{
    (void)snprintf(out->timeout, sizeof(out->timeout), "%" PRId64 " microseconds",
                   input->heartbeat_timeout);
    uint64_t fleet = 0;
    MR_TRY(mr__names_fleet_key(input->names, &fleet));
    (void)snprintf(out->leader_key, sizeof(out->leader_key), "%" PRId64,
                   input->leader_key >= 0 ? input->leader_key : (int64_t)fleet);
    (void)snprintf(out->lag, sizeof(out->lag), "%" PRId64, input->lag_threshold);
    if (count < WITH_VERSION)
        return NULL;
    mr_schema_input schema = {.names = input->names, .log = input->log};
    int current = 0, latest = 0;
    MR_TRY(mr__schema_status(conn, &schema, &current, &latest));
    (void)snprintf(out->version, sizeof(out->version), "%d", current);
    return NULL;
}

/* A table, column or function that is not there: no schema, or an old one. */
static mr_error *missing_schema(mr_error *error)
{
    const char *state = mr_error_sqlstate(error);
    mr_error *said = NULL;
    if (strcmp(state, "42P01") == 0 || strcmp(state, "3F000") == 0)
        said = mr__error(MR_E_SCHEMA, "Millrace's tables are not in this database; run: millrace "
                                      "schema apply");
    else if (strcmp(state, "42703") == 0 || strcmp(state, "42883") == 0)
        said = mr__error(MR_E_SCHEMA,
                         "Millrace's tables do not fit this program (%s); run: millrace "
                         "schema apply",
                         mr_error_message(error));
    if (said == NULL)
        return error;
    mr_error_free(error);
    return said;
}

mr_error *mr__list_query(PGconn *conn, const mr_buf *sql, int count, const char *const *parameters,
                         PGresult **rows)
{
    if (sql->failed)
        return mr__error_nomem();
    return missing_schema(mr__pg_query(conn, rows, sql->data, count, parameters));
}

mr_error *mr__list_run(PGconn *conn, const mr_list_input *input, const mr_buf *sql, int parameters,
                       PGresult **rows)
{
    fleet_values v = {.timeout = ""};
    MR_TRY(make_values(conn, input, parameters, &v));
    const char *const values[FLEET_PARAMETERS] = {v.timeout, v.leader_key, v.lag, v.version};
    return mr__list_query(conn, sql, parameters, values, rows);
}

/* ---- By name ------------------------------------------------------------------------------- */

/* "audit" or "audit:NAME"; `*known` is false when it is neither that nor the like. */
static mr_error *list_past(PGconn *conn, const mr_list_input *input, const char *what,
                           PGresult **rows, bool *known)
{
    const char *colon = strchr(what, ':');
    MR_AUTO_BUF kind = {0};
    mr__buf_add(&kind, what, colon == NULL ? strlen(what) : (size_t)(colon - what));
    MR_AUTO_BUF sql = {0};
    *known = mr__list_past(&sql, input->names, mr__buf_text(&kind), colon != NULL);
    if (!*known)
        return NULL;
    const char *const name[] = {colon == NULL ? NULL : colon + 1};
    return mr__list_query(conn, &sql, colon == NULL ? 0 : 1, name, rows);
}

mr_error *mr__list_rows(PGconn *conn, const mr_list_input *input, const char *what, PGresult **rows)
{
    bool past = false;
    mr_error *error = list_past(conn, input, what, rows, &past);
    if (past || error != NULL)
        return error;
    MR_AUTO_BUF sql = {0};
    if (strcmp(what, "workers") == 0) {
        mr__list_workers(&sql, input->names);
        return mr__list_run(conn, input, &sql, 2, rows);
    }
    bool gaps = strcmp(what, "gaps.open") == 0, status = strcmp(what, "status") == 0;
    if (!gaps && !status && strcmp(what, "consumers") != 0)
        return mr__error(MR_E_USAGE, "there is no listing '%s'", what);
    mr_log_shape shape;
    MR_TRY(mr__log_shape_read(conn, input->log, &shape));
    if (gaps) {
        put_gaps_open(&sql, input->names, &shape);
        return mr__list_query(conn, &sql, 0, NULL, rows);
    }
    if (status)
        mr__list_status(&sql, input->names, &shape);
    else
        mr__list_consumers(&sql, input->names, &shape);
    return mr__list_run(conn, input, &sql, status ? WITH_VERSION : 2, rows);
}
