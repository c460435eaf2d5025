/* Rows of the log: the SELECT that fetches them and the events in its result. */
#include "log/rows.h"

#include <endian.h>
#include <inttypes.h>
#include <string.h>

/* Order of the columns in the SELECT; light rows end after EVENT_TYPE. */
enum {
    AT_POSITION,
    AT_AGGREGATE_TYPE,
    AT_AGGREGATE_ID,
    AT_EVENT_TYPE,
    AT_AGGREGATE_VERSION,
    AT_EVENT_ID,
    AT_EVENT_VERSION,
    AT_PAYLOAD,
    AT_PAYLOAD_LENGTH,
    AT_TRACE_ID,
    AT_CORRELATION_ID,
    AT_CAUSATION_ID,
    AT_METADATA,
    AT_CREATED_AT,
};

/* PostgreSQL counts from 2000-01-01. */
static const int64_t epoch_shift = 946684800LL * 1000000;

void mr__rows_column(mr_buf *sql, const mr_log_shape *shape, mr_column column)
{
    mr__ident_quote(sql, shape->column[column]);
}

/* The column cast to what the parser expects, or a stand-in when the table has none. */
static void put(mr_buf *sql, const mr_log_shape *shape, mr_column column, const char *type)
{
    if (shape->column[column][0] == '\0') {
        mr__buf_printf(sql, ", NULL::%s", type);
        return;
    }
    mr__buf_puts(sql, ", e.");
    mr__rows_column(sql, shape, column);
    mr__buf_printf(sql, "::%s", type);
}

static void put_payload(mr_buf *sql, const mr_log_shape *shape, int64_t most)
{
    MR_AUTO_BUF column = {0};
    mr__buf_puts(&column, "e.");
    mr__rows_column(&column, shape, MR_COL_PAYLOAD);
    const char *name = mr__buf_text(&column);
    bool json = shape->payload_kind == MR_PAYLOAD_JSONB;
    /* Neither function reads a value that is stored out of line. */
    const char *size = json ? "pg_column_size" : "octet_length";
    const char *cast = json ? "::text" : "";
    if (most < 0)
        mr__buf_printf(sql, ", %s%s, %s(%s)::int8", name, cast, size, name);
    else
        mr__buf_printf(sql, ", CASE WHEN %s(%s) <= %" PRId64 " THEN %s%s END, %s(%s)::int8", size,
                       name, most, name, cast, size, name);
}

void mr__rows_select(mr_buf *sql, const mr_log_shape *shape, const mr_rows_want *want)
{
    mr__buf_puts(sql, "SELECT e.");
    mr__rows_column(sql, shape, MR_COL_POSITION);
    mr__buf_puts(sql, "::int8");
    put(sql, shape, MR_COL_AGGREGATE_TYPE, "text");
    put(sql, shape, MR_COL_AGGREGATE_ID, "text");
    put(sql, shape, MR_COL_EVENT_TYPE, "text");
    if (!want->light) {
        put(sql, shape, MR_COL_AGGREGATE_VERSION, "int8");
        put(sql, shape, MR_COL_EVENT_ID, "text");
        put(sql, shape, MR_COL_EVENT_VERSION, "int8");
        put_payload(sql, shape, want->inline_payload_max);
        put(sql, shape, MR_COL_TRACE_ID, "text");
        put(sql, shape, MR_COL_CORRELATION_ID, "text");
        put(sql, shape, MR_COL_CAUSATION_ID, "text");
        put(sql, shape, MR_COL_METADATA, "text");
        put(sql, shape, MR_COL_CREATED_AT, "timestamptz");
    }
    mr__buf_puts(sql, " FROM ");
    mr__qname_quote(sql, &shape->table);
    mr__buf_puts(sql, " AS e");
}

int64_t mr__rows_int64(const PGresult *result, int row, int column)
{
    uint64_t raw;
    if (PQgetlength(result, row, column) != (int)sizeof(raw))
        return 0; /* SQL NULL */
    memcpy(&raw, PQgetvalue(result, row, column), sizeof(raw));
    return (int64_t)be64toh(raw);
}

int64_t mr__rows_position(const PGresult *result, int row)
{
    return mr__rows_int64(result, row, AT_POSITION);
}

static const char *text_or_null(const PGresult *result, int row, int column)
{
    return PQgetisnull(result, row, column) ? NULL : PQgetvalue(result, row, column);
}

static void parse_rest(const PGresult *result, int row, mr_event *event)
{
    event->aggregate_version = mr__rows_int64(result, row, AT_AGGREGATE_VERSION);
    event->event_id = PQgetvalue(result, row, AT_EVENT_ID);
    event->event_version = (int)mr__rows_int64(result, row, AT_EVENT_VERSION);
    event->payload_length = (size_t)mr__rows_int64(result, row, AT_PAYLOAD_LENGTH);
    event->payload = text_or_null(result, row, AT_PAYLOAD);
    if (event->payload != NULL)
        event->payload_length = (size_t)PQgetlength(result, row, AT_PAYLOAD);
    else if (PQgetisnull(result, row, AT_PAYLOAD_LENGTH))
        event->payload = ""; /* the column is NULL: an event without a payload */
    event->trace_id = text_or_null(result, row, AT_TRACE_ID);
    event->correlation_id = text_or_null(result, row, AT_CORRELATION_ID);
    event->causation_id = text_or_null(result, row, AT_CAUSATION_ID);
    event->metadata = text_or_null(result, row, AT_METADATA);
    event->created_at = PQgetisnull(result, row, AT_CREATED_AT)
                            ? 0
                            : mr__rows_int64(result, row, AT_CREATED_AT) + epoch_shift;
}

size_t mr__rows_parse(const PGresult *result, bool light, mr_event *events)
{
    int count = PQntuples(result);
    for (int row = 0; row < count; row++) {
        mr_event *event = &events[row];
        *event = (mr_event){.position = mr__rows_position(result, row)};
        event->aggregate_type = PQgetvalue(result, row, AT_AGGREGATE_TYPE);
        event->aggregate_id = PQgetvalue(result, row, AT_AGGREGATE_ID);
        event->event_type = PQgetvalue(result, row, AT_EVENT_TYPE);
        event->event_id = "";
        event->payload = light ? NULL : event->payload;
        if (!light)
            parse_rest(result, row, event);
    }
    return PQresultMemorySize(result) + (size_t)count * sizeof(*events);
}

int64_t mr_event_position(const mr_event *event)
{
    return event->position;
}

const char *mr_event_aggregate_type(const mr_event *event)
{
    return event->aggregate_type;
}

const char *mr_event_aggregate_id(const mr_event *event)
{
    return event->aggregate_id;
}

int64_t mr_event_aggregate_version(const mr_event *event)
{
    return event->aggregate_version;
}

const char *mr_event_id(const mr_event *event)
{
    return event->event_id;
}

const char *mr_event_type(const mr_event *event)
{
    return event->event_type;
}

int mr_event_version(const mr_event *event)
{
    return event->event_version;
}

const char *mr_event_payload(const mr_event *event, size_t *length)
{
    if (length != NULL)
        *length = event->payload == NULL ? 0 : event->payload_length;
    return event->payload == NULL ? "" : event->payload;
}

const char *mr_event_trace_id(const mr_event *event)
{
    return event->trace_id;
}

const char *mr_event_correlation_id(const mr_event *event)
{
    return event->correlation_id;
}

const char *mr_event_causation_id(const mr_event *event)
{
    return event->causation_id;
}

const char *mr_event_metadata(const mr_event *event)
{
    return event->metadata;
}

int64_t mr_event_created_at(const mr_event *event)
{
    return event->created_at;
}
