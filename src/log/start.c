/* Where to start reading a log, from what a person wrote. Blocking, on the caller's connection. */
#include "log/start.h"

#include "base/text.h"
#include "log/rows.h"
#include "pg/conn.h"

#include <stdlib.h>
#include <string.h>

/* The position just before the first event at or after a time; the head when there is none. */
static mr_error *position_at_time(PGconn *conn, const mr_log_shape *shape, const char *time,
                                  mr_code code, int64_t *position)
{
    if (shape->column[MR_COL_CREATED_AT][0] == '\0')
        return mr__error(code, "the log has no created_at column to find '%s' in", time);
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT coalesce(min(e.");
    mr__rows_column(&sql, shape, MR_COL_POSITION);
    mr__buf_puts(&sql, ") - 1, (SELECT coalesce(max(");
    mr__rows_column(&sql, shape, MR_COL_POSITION);
    mr__buf_puts(&sql, "), 0) FROM ");
    mr__qname_quote(&sql, &shape->table);
    mr__buf_puts(&sql, "))::int8 FROM ");
    mr__qname_quote(&sql, &shape->table);
    mr__buf_puts(&sql, " e WHERE e.");
    mr__rows_column(&sql, shape, MR_COL_CREATED_AT);
    mr__buf_puts(&sql, " >= $1::timestamptz");
    MR_AUTO_RESULT rows = NULL;
    mr_error *error = mr__pg_query(conn, &rows, mr__buf_text(&sql), 1, &time);
    if (error != NULL && strncmp(mr_error_sqlstate(error), "22", 2) == 0) {
        mr_error_free(error);
        return mr__error(code,
                         "'%s' is not beginning, now, a position or a time such as "
                         "2026-01-31T12:00:00Z",
                         time);
    }
    MR_TRY(error);
    *position = strtoll(PQgetvalue(rows, 0, 0), NULL, 10);
    return NULL;
}

mr_error *mr__log_start(PGconn *conn, const mr_log_shape *shape, const char *from, mr_code code,
                        int64_t *position)
{
    int64_t number = 0;
    if (strcmp(from, "now") == 0) {
        mr_log log = {.shape = *shape};
        return mr_log_latest(conn, &log, position);
    }
    if (strcmp(from, "beginning") != 0) {
        if (!mr__text_int(from, &number))
            return position_at_time(conn, shape, from, code, position);
        if (number < 0)
            return mr__error(code, "a position cannot be negative");
    }
    *position = number;
    return NULL;
}
