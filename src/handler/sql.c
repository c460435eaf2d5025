/* Handlers that are SQL: a statement for each event with named parameters, or one for each batch
 * over the relation `batch`. */
#include "base/text.h"
#include "handler/handler.h"
#include "handler/sqltext.h"
#include "log/rows.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mr_error *mr__handler_parse(PGconn *conn, const char *what, const char *sql)
{
    return mr__handler_parse_typed(conn, what, sql, 0, NULL);
}

mr_error *mr__handler_parse_typed(PGconn *conn, const char *what, const char *sql, int count,
                                  const Oid *types)
{
    const char *word = mr__tx_control_word(sql);
    if (word != NULL)
        return mr__error(MR_E_CONFIG, "%s: '%s' is not allowed; the worker runs the transaction",
                         what, word);
    MR_AUTO_RESULT parsed = PQprepare(conn, "", sql, count, types);
    mr_error *error = mr_error_from_result(conn, parsed);
    if (error == NULL || mr_error_code(error) == MR_E_CONNECT)
        return error;
    const char *position = PQresultErrorField(parsed, PG_DIAG_STATEMENT_POSITION);
    size_t at = position == NULL ? 0 : (size_t)strtoul(position, NULL, 10);
    /* The word where it went wrong says more than a column number in a rewritten text. */
    const char *near = at > 0 && at <= strlen(sql) ? sql + at - 1 : "";
    mr_error *told =
        mr__error_db(MR_E_CONFIG, mr_error_sqlstate(error), false, "%s: %s%s%.40s", what,
                     mr_error_message(error), near[0] == '\0' ? "" : "; near: ", near);
    mr_error_free(error);
    return told;
}

/* ---- sql ----------------------------------------------------------------------------------- */

typedef struct sql_handler {
    mr_handler base;
    mr_sql_text text;
} sql_handler;

/* The values of one event for one statement. */
typedef struct sql_values {
    const char *values[MR_SQL_PARAMS];
    int lengths[MR_SQL_PARAMS], formats[MR_SQL_PARAMS];
    uint64_t numbers[MR_SQL_PARAMS]; /* storage for binary ones */
} sql_values;

static void put_number(sql_values *v, int i, int64_t number)
{
    v->numbers[i] = htobe64((uint64_t)number);
    v->values[i] = (const char *)&v->numbers[i];
    v->lengths[i] = 8;
    v->formats[i] = 1;
}

static mr_error *put_data(sql_values *v, int i, const mr_event *event)
{
    if (!mr__text_utf8(event->payload, event->payload_length))
        return mr__error(MR_E_HANDLER,
                         "the payload at position %" PRId64
                         " is not UTF-8 text, so :data cannot be "
                         "made from it; use :payload",
                         event->position);
    v->values[i] = event->payload;
    return NULL;
}

static const char *text_of(const mr_event *event, int param)
{
    switch (param) {
    case MR_COL_AGGREGATE_TYPE:
        return event->aggregate_type;
    case MR_COL_AGGREGATE_ID:
        return event->aggregate_id;
    case MR_COL_EVENT_ID:
        return event->event_id[0] == '\0' ? NULL : event->event_id;
    case MR_COL_EVENT_TYPE:
        return event->event_type;
    case MR_COL_TRACE_ID:
        return event->trace_id;
    case MR_COL_CORRELATION_ID:
        return event->correlation_id;
    case MR_COL_CAUSATION_ID:
        return event->causation_id;
    case MR_COL_METADATA:
        return event->metadata;
    default:
        return NULL;
    }
}

static mr_error *put_value(sql_values *v, int i, const mr_event *event, int param)
{
    static const int64_t epoch_shift = 946684800LL * 1000000; /* PostgreSQL counts from 2000 */
    v->lengths[i] = 0;
    v->formats[i] = 0;
    switch (param) {
    case MR_COL_POSITION:
        put_number(v, i, event->position);
        return NULL;
    case MR_COL_AGGREGATE_VERSION:
        put_number(v, i, event->aggregate_version);
        return NULL;
    case MR_COL_CREATED_AT:
        put_number(v, i, event->created_at - epoch_shift);
        return NULL;
    case MR_COL_EVENT_VERSION: {
        uint32_t number = htobe32((uint32_t)event->event_version);
        memcpy(&v->numbers[i], &number, sizeof(number));
        v->values[i] = (const char *)&v->numbers[i];
        v->lengths[i] = 4;
        v->formats[i] = 1;
        return NULL;
    }
    case MR_COL_PAYLOAD:
        v->values[i] = event->payload;
        v->lengths[i] = (int)event->payload_length;
        v->formats[i] = 1;
        return NULL;
    case MR_SQL_DATA:
        return put_data(v, i, event);
    default:
        v->values[i] = text_of(event, param);
        return NULL;
    }
}

static bool uses_payload(const mr_sql_text *text)
{
    for (int i = 0; i < text->count; i++)
        if (text->params[i] == MR_COL_PAYLOAD || text->params[i] == MR_SQL_DATA)
            return true;
    return false;
}

static mr_error *run_one(sql_handler *h, mr_tx *tx, const mr_run *run, const mr_event *event)
{
    mr_event whole;
    MR_AUTO_RESULT rows = NULL;
    if (event->payload == NULL && uses_payload(&h->text)) {
        MR_TRY(mr__handler_load(tx, run->shape, event, &whole, &rows));
        event = &whole;
    }
    sql_values v;
    for (int i = 0; i < h->text.count; i++)
        MR_TRY(put_value(&v, i, event, h->text.params[i]));
    return mr_tx_exec_params(tx, h->text.sql, h->text.count, NULL, v.values, v.lengths, v.formats);
}

static mr_error *run_sql(mr_handler *handler, mr_tx *tx, const mr_run *run)
{
    sql_handler *h = (sql_handler *)handler;
    for (size_t i = 0; i < run->count; i++) {
        mr__tx_tag(tx, (int)i);
        MR_TRY(run_one(h, tx, run, run->events[i]));
    }
    return NULL;
}

static mr_error *check_sql(mr_handler *handler, PGconn *conn)
{
    return mr__handler_parse(conn, "sql", ((sql_handler *)handler)->text.sql);
}

static void free_sql(mr_handler *handler)
{
    sql_handler *h = (sql_handler *)handler;
    mr__sqltext_free(&h->text);
    free(h);
}

mr_error *mr__handler_sql(const char *text, mr_handler **out)
{
    mr_sql_text parsed;
    MR_TRY(mr__error_prefix(mr__sqltext_params(text, &parsed), "sql"));
    sql_handler *h = calloc(1, sizeof(*h));
    if (h == NULL) {
        mr__sqltext_free(&parsed);
        return mr__error_nomem();
    }
    h->base =
        (mr_handler){.run = run_sql, .check = check_sql, .free = free_sql, .wants_rows = true};
    h->text = parsed;
    *out = &h->base;
    return NULL;
}

/* ---- sql_batch ----------------------------------------------------------------------------- */

typedef struct set_handler {
    mr_handler base;
    char *sql, *aggregate_types, *event_types;
} set_handler;

static mr_error *run_set(mr_handler *handler, mr_tx *tx, const mr_run *run)
{
    set_handler *h = (set_handler *)handler;
    char from[24], to[24];
    (void)snprintf(from, sizeof(from), "%" PRId64, run->from);
    (void)snprintf(to, sizeof(to), "%" PRId64, run->to);
    MR_AUTO_BUF listed = {0};
    for (size_t i = 0; run->some && i < run->count; i++)
        mr__buf_printf(&listed, "%s%" PRId64, i == 0 ? "{" : ",", run->events[i]->position);
    mr__buf_puts(&listed, run->some ? "}" : "");
    if (listed.failed)
        return mr__error_nomem();
    const char *values[] = {from, to, h->aggregate_types, h->event_types,
                            run->some ? mr__buf_text(&listed) : NULL};
    return mr_tx_exec(tx, h->sql, 5, values);
}

static mr_error *check_set(mr_handler *handler, PGconn *conn)
{
    return mr__handler_parse(conn, "sql_batch", ((set_handler *)handler)->sql);
}

static void free_set(mr_handler *handler)
{
    set_handler *h = (set_handler *)handler;
    free(h->sql);
    free(h->aggregate_types);
    free(h->event_types);
    free(h);
}

static void put_data_column(mr_buf *sql, const mr_log_shape *shape)
{
    /* A log whose payload column is itself called data shows it as it is. */
    if (strcmp(shape->column[MR_COL_PAYLOAD], "data") == 0)
        return;
    MR_AUTO_BUF column = {0};
    mr__buf_puts(&column, "e.");
    mr__rows_column(&column, shape, MR_COL_PAYLOAD);
    const char *name = mr__buf_text(&column);
    if (shape->payload_kind == MR_PAYLOAD_BYTEA)
        mr__buf_printf(sql, ", pg_catalog.convert_from(%s, 'UTF8')::jsonb AS data", name);
    else
        mr__buf_printf(sql, ", %s::jsonb AS data", name);
}

/* The events of a batch as a relation: the table's own columns, Millrace's names for those that are
 * called otherwise, and `data`. */
static void put_definition(mr_buf *sql, const mr_log_shape *shape)
{
    mr__buf_puts(sql, "SELECT e.*");
    for (int i = 0; i < MR_COL_COUNT; i++) {
        if (shape->column[i][0] == '\0' ||
            strcmp(shape->column[i], mr__log_column_name((mr_column)i)) == 0)
            continue;
        mr__buf_puts(sql, ", e.");
        mr__rows_column(sql, shape, (mr_column)i);
        mr__buf_printf(sql, " AS %s", mr__log_column_name((mr_column)i));
    }
    put_data_column(sql, shape);
    mr__buf_puts(sql, " FROM ");
    mr__qname_quote(sql, &shape->table);
    mr__buf_puts(sql, " AS e WHERE e.");
    mr__rows_column(sql, shape, MR_COL_POSITION);
    mr__buf_puts(sql, " > $1::int8 AND e.");
    mr__rows_column(sql, shape, MR_COL_POSITION);
    mr__buf_puts(sql, " <= $2::int8 AND ($3::text[] IS NULL OR e.");
    mr__rows_column(sql, shape, MR_COL_AGGREGATE_TYPE);
    mr__buf_puts(sql, "::text = ANY($3::text[])) AND ($4::text[] IS NULL OR e.");
    mr__rows_column(sql, shape, MR_COL_EVENT_TYPE);
    mr__buf_puts(sql, "::text = ANY($4::text[])) AND ($5::int8[] IS NULL OR e.");
    mr__rows_column(sql, shape, MR_COL_POSITION);
    mr__buf_puts(sql, " = ANY($5::int8[]))");
}

static mr_error *fill_set(set_handler *h, const char *text, const mr_log_shape *shape,
                          const mr_filter *filter)
{
    MR_AUTO_BUF definition = {0};
    put_definition(&definition, shape);
    MR_TRY(mr__sqltext_batch(text, mr__buf_text(&definition), &h->sql));
    if (filter->aggregate_type_count > 0) {
        h->aggregate_types =
            mr__filter_array(filter->aggregate_types, filter->aggregate_type_count);
        if (h->aggregate_types == NULL)
            return mr__error_nomem();
    }
    if (filter->event_type_count > 0) {
        h->event_types = mr__filter_array(filter->event_types, filter->event_type_count);
        if (h->event_types == NULL)
            return mr__error_nomem();
    }
    return NULL;
}

mr_error *mr__handler_sql_batch(const char *text, const mr_log_shape *shape,
                                const mr_filter *filter, mr_handler **out)
{
    set_handler *h = calloc(1, sizeof(*h));
    if (h == NULL)
        return mr__error_nomem();
    h->base =
        (mr_handler){.run = run_set, .check = check_set, .free = free_set, .wants_rows = false};
    mr_error *error = fill_set(h, text, shape, filter);
    if (error != NULL) {
        free_set(&h->base);
        return error;
    }
    *out = &h->base;
    return NULL;
}
