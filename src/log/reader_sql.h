/* The statements of the reader, rendered once for a log. */
#ifndef MR_LOG_READER_SQL_H
#define MR_LOG_READER_SQL_H

#include "log/rows.h"

typedef struct mr_reader_sql {
    char *window;   /* $1 = after, $2 = limit */
    char *head;     /* highest visible position, in recovery? (text) */
    char *evidence; /* who holds a lock able to insert: id, prepared (text) */
    char *xid;      /* a transaction id drawn now (text) */
    char *snapshot; /* the oldest transaction id that still runs (text) */
} mr_reader_sql;

mr_error *mr__reader_sql_render(const mr_log_shape *shape, const mr_rows_want *want,
                                mr_reader_sql *out) MR_MUST_CHECK;
void mr__reader_sql_free(mr_reader_sql *sql);
/* The evidence query's FROM and WHERE over pg_locks l, shared with the listing that names holders.
 */
void mr__reader_sql_holders(mr_buf *sql, const mr_log_shape *shape);

#endif
