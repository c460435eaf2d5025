/* Plain reads of the log on the caller's connection: by position, by stream, latest. */
#include "log/rows.h"

#include "pg/conn.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct mr_events {
    PGresult *result;
    mr_event *events;
    size_t count;
};

static const mr_rows_want everything = {.light = false, .inline_payload_max = -1};

static mr_error *fetch(PGconn *conn, const char *sql, int count, const char *const *values,
                       mr_events **out)
{
    MR_AUTO_RESULT result = PQexecParams(conn, sql, count, NULL, values, NULL, NULL, 1);
    MR_TRY(mr_error_from_result(conn, result));
    mr_events *rows = calloc(1, sizeof(*rows));
    size_t n = (size_t)PQntuples(result);
    mr_event *events = calloc(n + 1, sizeof(*events));
    if (rows == NULL || events == NULL) {
        free(rows);
        free(events);
        return mr__error_nomem();
    }
    (void)mr__rows_parse(result, false, events);
    *rows = (mr_events){.result = result, .events = events, .count = n};
    result = NULL;
    *out = rows;
    return NULL;
}

mr_error *mr_log_read(PGconn *conn, const mr_log *log, int64_t after, int limit, mr_events **events)
{
    MR_AUTO_BUF sql = {0};
    mr__rows_select(&sql, &log->shape, &everything);
    mr__buf_puts(&sql, " WHERE e.");
    mr__rows_column(&sql, &log->shape, MR_COL_POSITION);
    mr__buf_puts(&sql, " > $1::int8 ORDER BY 1 LIMIT $2::int8");
    char from[32], most[32];
    (void)snprintf(from, sizeof(from), "%" PRId64, after);
    (void)snprintf(most, sizeof(most), "%d", limit);
    const char *values[] = {from, most};
    return sql.failed ? mr__error_nomem() : fetch(conn, sql.data, 2, values, events);
}

mr_error *mr_log_read_stream(PGconn *conn, const mr_log *log, const char *aggregate_type,
                             const char *aggregate_id, int64_t from, int64_t to, mr_events **events)
{
    if (log->shape.column[MR_COL_AGGREGATE_VERSION][0] == '\0')
        return mr__error(MR_E_LOG, "this log has no version column, so a stream cannot be read in "
                                   "its order; map one with log.columns.aggregate_version");
    MR_AUTO_BUF sql = {0};
    mr__rows_select(&sql, &log->shape, &everything);
    mr__buf_puts(&sql, " WHERE e.");
    mr__rows_column(&sql, &log->shape, MR_COL_AGGREGATE_TYPE);
    mr__buf_puts(&sql, " = $1 AND e.");
    mr__rows_column(&sql, &log->shape, MR_COL_AGGREGATE_ID);
    mr__buf_puts(&sql, " = $2 AND e.");
    mr__rows_column(&sql, &log->shape, MR_COL_AGGREGATE_VERSION);
    mr__buf_puts(&sql, " >= $3::int8 AND ($4::int8 = 0 OR e.");
    mr__rows_column(&sql, &log->shape, MR_COL_AGGREGATE_VERSION);
    mr__buf_puts(&sql, " <= $4::int8) ORDER BY e.");
    mr__rows_column(&sql, &log->shape, MR_COL_AGGREGATE_VERSION);
    char low[32], high[32];
    (void)snprintf(low, sizeof(low), "%" PRId64, from);
    (void)snprintf(high, sizeof(high), "%" PRId64, to);
    const char *values[] = {aggregate_type, aggregate_id, low, high};
    return sql.failed ? mr__error_nomem() : fetch(conn, sql.data, 4, values, events);
}

mr_error *mr_log_latest(PGconn *conn, const mr_log *log, int64_t *position)
{
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT coalesce(max(");
    mr__rows_column(&sql, &log->shape, MR_COL_POSITION);
    mr__buf_puts(&sql, "), 0)::int8 FROM ");
    mr__qname_quote(&sql, &log->shape.table);
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, mr__buf_text(&sql), 0, NULL));
    *position = strtoll(PQgetvalue(rows, 0, 0), NULL, 10);
    return NULL;
}

void mr_events_free(mr_events *events)
{
    if (events == NULL)
        return;
    PQclear(events->result);
    free(events->events);
    free(events);
}

size_t mr_events_count(const mr_events *events)
{
    return events->count;
}

const mr_event *mr_events_at(const mr_events *events, size_t index)
{
    return index < events->count ? &events->events[index] : NULL;
}
