/* Appends a draft on the caller's own connection: one round trip, and a failure leaves the caller's
 * transaction as it was. */
#include "log/append.h"

#include "base/text.h"
#include "pg/array.h"
#include "pg/conn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mr_error *mr__log_open(PGconn *conn, const mr_log_spec *spec, const char *schema, mr_log **out)
{
    mr_log *log = calloc(1, sizeof(*log));
    if (log == NULL)
        return mr__error_nomem();
    mr_error *error = mr__log_shape_read(conn, spec, &log->shape);
    if (error != NULL) {
        free(log);
        return error;
    }
    (void)snprintf(log->schema, sizeof(log->schema), "%s", schema);
    *out = log;
    return NULL;
}

void mr_log_free(mr_log *log)
{
    free(log);
}

mr_error *mr_log_notify(PGconn *conn, const char *channel, int64_t position)
{
    if (channel == NULL || channel[0] == '\0' || strlen(channel) > MR_IDENT_MAX)
        return mr__error(MR_E_USAGE, "a notification channel's name must have 1 to 63 bytes");
    char payload[24];
    (void)snprintf(payload, sizeof(payload), "%lld", (long long)position);
    const char *values[] = {channel, payload};
    return mr__pg_query(conn, NULL, "SELECT pg_catalog.pg_notify($1, $2)", 2, values);
}

/* A column that holds text cannot take every byte; said here it names the event and costs nothing.
 */
static mr_error *check_payloads(const mr_log *log, const mr_draft *draft)
{
    if (log->shape.payload_kind == MR_PAYLOAD_BYTEA)
        return NULL;
    for (size_t i = 0; i < draft->event_count; i++) {
        mr_slice payload = draft->events[i].payload;
        if (!mr__text_utf8(mr__draft_bytes(draft, payload), payload.length))
            return mr__error(MR_E_USAGE,
                             "event %zu: its payload is not UTF-8 text without NUL, which the "
                             "log's %s column needs",
                             i + 1, log->shape.payload_kind == MR_PAYLOAD_JSONB ? "JSON" : "text");
    }
    return NULL;
}

static mr_error *check_call(PGconn *conn, const mr_log *log, const mr_draft *draft)
{
    if (PQstatus(conn) != CONNECTION_OK)
        return mr__pg_conn_error(conn);
    if (PQpipelineStatus(conn) != PQ_PIPELINE_OFF)
        return mr__error(MR_E_USAGE,
                         "mr_append() on a connection in pipeline mode; leave it first");
    PGTransactionStatusType status = PQtransactionStatus(conn);
    if (status == PQTRANS_INERROR)
        return mr__error(MR_E_USAGE, "mr_append() in a transaction that has failed; roll it back");
    if (status != PQTRANS_IDLE && status != PQTRANS_INTRANS)
        return mr__error(MR_E_USAGE, "mr_append() while the connection runs another statement");
    if (draft->event_count == 0)
        return mr__error(MR_E_USAGE, "the draft holds no events");
    if (log->shape.heads.name[0] == '\0')
        return mr__error(MR_E_LOG,
                         "the log %s.%s has no heads table, so it can be read but not appended to; "
                         "name it with `log: heads_table:`",
                         log->shape.table.schema, log->shape.table.name);
    if (log->shape.sequence[0] == '\0')
        return mr__error(MR_E_LOG,
                         "the positions of %s.%s do not come from a sequence by default, so "
                         "Millrace cannot append to it",
                         log->shape.table.schema, log->shape.table.name);
    return check_payloads(log, draft);
}

/* Says what the server's answer means for an append. */
static mr_error *explain(mr_error *error)
{
    const char *state = mr_error_sqlstate(error);
    if (strcmp(state, "42883") == 0 || strcmp(state, "3F000") == 0) {
        mr_error *told =
            mr__error_db(MR_E_SCHEMA, state, false,
                         "the append functions are missing (%s); run: millrace schema apply",
                         mr_error_message(error));
        mr_error_free(error);
        return told;
    }
    if (strcmp(state, "MR005") == 0) {
        mr_error *told = mr__error_db(MR_E_LOG, state, false, "%s", mr_error_message(error));
        mr_error_free(error);
        return told;
    }
    return error;
}

static mr_error *take_positions(const PGresult *rows, mr_draft *draft)
{
    if (rows == NULL || (size_t)PQntuples(rows) != draft->event_count)
        return mr__error(MR_E_INTERNAL, "the append gave %d positions for %zu events",
                         rows == NULL ? 0 : PQntuples(rows), draft->event_count);
    for (size_t i = 0; i < draft->event_count; i++) {
        draft->events[i].position = mr__binary_int8(rows, (int)i, 0);
        draft->events[i].version = mr__binary_int8(rows, (int)i, 1);
    }
    return NULL;
}

/* Without a transaction the one statement is its own. */
static mr_error *append_alone(PGconn *conn, const char *sql, const mr_append_params *p,
                              mr_draft *draft)
{
    MR_AUTO_RESULT rows =
        PQexecParams(conn, sql, MR_APPEND_PARAMS, p->types, p->values, p->lengths, p->formats, 1);
    MR_TRY(mr_error_from_result(conn, rows));
    return take_positions(rows, draft);
}

/* Reads every result up to the sync: the rows of the append, and the first error. */
static mr_error *drain(PGconn *conn, PGresult **rows)
{
    mr_error *error = NULL;
    for (int quiet = 0; quiet < 2;) { /* two NULLs in a row: nothing more will come */
        PGresult *result = PQgetResult(conn);
        if (result == NULL) {
            quiet++;
            continue;
        }
        quiet = 0;
        ExecStatusType status = PQresultStatus(result);
        if (status == PGRES_TUPLES_OK && *rows == NULL) {
            *rows = result;
            continue;
        }
        if (error == NULL && status != PGRES_PIPELINE_ABORTED)
            error = mr_error_from_result(conn, result);
        PQclear(result);
        if (status == PGRES_PIPELINE_SYNC)
            return error;
    }
    return error != NULL ? error : mr__pg_conn_error(conn);
}

static bool send_in_savepoint(PGconn *conn, const char *sql, const mr_append_params *p)
{
    return PQsendQueryParams(conn, "SAVEPOINT mr_append", 0, NULL, NULL, NULL, NULL, 0) == 1 &&
           PQsendQueryParams(conn, sql, MR_APPEND_PARAMS, p->types, p->values, p->lengths,
                             p->formats, 1) == 1 &&
           PQsendQueryParams(conn, "RELEASE SAVEPOINT mr_append", 0, NULL, NULL, NULL, NULL, 0) ==
               1 &&
           PQpipelineSync(conn) == 1;
}

/* Within the caller's transaction: a savepoint around the statement, all in one pipeline, so that a
 * conflict takes away nothing but the draft. libpq reads what the server sends while it waits to
 * write, so neither side can block the other however large the draft is. */
static mr_error *append_within(PGconn *conn, const char *sql, const mr_append_params *p,
                               mr_draft *draft)
{
    MR_AUTO_RESULT rows = NULL;
    if (PQenterPipelineMode(conn) != 1)
        return mr__error(MR_E_USAGE, "mr_append() while the connection has results to be read");
    mr_error *error = NULL;
    if (send_in_savepoint(conn, sql, p))
        error = drain(conn, &rows);
    else
        error = mr__pg_conn_error(conn);
    bool left = PQexitPipelineMode(conn) == 1;
    if (error == NULL && !left)
        error = mr__pg_conn_error(conn);
    if (error == NULL)
        return take_positions(rows, draft);
    if (left && PQtransactionStatus(conn) == PQTRANS_INERROR)
        mr_error_free(
            mr__pg_script(conn, "ROLLBACK TO SAVEPOINT mr_append; RELEASE SAVEPOINT mr_append"));
    return error;
}

mr_error *mr_append(PGconn *conn, const mr_log *log, mr_draft *draft)
{
    MR_TRY(check_call(conn, log, draft));
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT pos, ver FROM ");
    mr__ident_quote(&sql, log->schema);
    mr__buf_puts(&sql, ".append_events($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15)");
    if (sql.failed)
        return mr__error_nomem();
    mr_append_params params;
    MR_TRY(mr__append_encode(&log->shape, draft, &params));
    mr_error *error = PQtransactionStatus(conn) == PQTRANS_IDLE
                          ? append_alone(conn, mr__buf_text(&sql), &params, draft)
                          : append_within(conn, mr__buf_text(&sql), &params, draft);
    mr__append_params_free(&params);
    return error == NULL ? NULL : explain(error);
}
