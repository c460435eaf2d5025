/* Rows of the log: the SELECT that fetches them and the events in its result. */
#ifndef MR_LOG_ROWS_H
#define MR_LOG_ROWS_H

#include "log/event.h"
#include "log/shape.h"

/* What to fetch. Light rows have the position, the types and the id: enough to know the frontier,
 * to filter and to partition, while payloads stay on the server. */
typedef struct mr_rows_want {
    bool light;
    int64_t
        inline_payload_max; /* larger payloads come as NULL with their length; -1 = all inline */
} mr_rows_want;

/* "SELECT … FROM log" without a WHERE. Results must be asked for in binary. */
void mr__rows_select(mr_buf *sql, const mr_log_shape *shape, const mr_rows_want *want);
/* `column` of the table as the quoted name, e.g. for a WHERE. */
void mr__rows_column(mr_buf *sql, const mr_log_shape *shape, mr_column column);
/* Fills `events` (room for PQntuples) with views into `result`. Returns the bytes that the rows
 * hold. */
size_t mr__rows_parse(const PGresult *result, bool light, mr_event *events);
/* Only the position of a row. */
int64_t mr__rows_position(const PGresult *result, int row);
/* A bigint in a binary result. */
int64_t mr__rows_int64(const PGresult *result, int row, int column);

#endif
