/* How a queue stands, at a cost that does not grow with the rows that have piled up: each number is
 * counted up to a bound, and where the planner says that even this would read much of the table its
 * estimate is given instead. */
#include "queue/operate.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Rows that are counted at most; what a count may cost in the planner's units, in which reading a
 * page of 8 kB in sequence is 1. */
enum { BOUND = 10000, DEAR = 50000 };

/* The row's numbers, in its order. */
static const struct {
    const char *column, *condition;
} numbers[] = {
    {"queued", "{v.state} = 'queued'"},         {"errored", "{v.state} = 'errored'"},
    {"processing", "{v.state} = 'processing'"}, {"completed", "{v.state} = 'completed'"},
    {"failed", "{v.state} = 'failed'"},         {"canceled", "{v.state} = 'canceled'"},
};
enum { NUMBERS = sizeof(numbers) / sizeof(numbers[0]) };

typedef struct estimate {
    double cost;
    int64_t rows; /* without the bound */
} estimate;

/* Rows that the plan's innermost node before the scan's own would give: below Aggregate and Limit.
 */
static int64_t rows_below(const json_t *plan)
{
    for (int depth = 0; depth < 2; depth++) {
        const json_t *next = json_array_get(json_object_get(plan, "Plans"), 0);
        if (next == NULL)
            break;
        plan = next;
    }
    return (int64_t)json_number_value(json_object_get(plan, "Plan Rows"));
}

static mr_error *ask_planner(PGconn *conn, const char *sql, estimate *out)
{
    MR_AUTO_BUF asked = {0};
    mr__buf_printf(&asked, "EXPLAIN (FORMAT JSON) %s", sql);
    if (asked.failed)
        return mr__error_nomem();
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__pg_query(conn, &rows, mr__buf_text(&asked), 0, NULL));
    json_t *whole = json_loads(PQgetvalue(rows, 0, 0), 0, NULL);
    const json_t *plan = json_object_get(json_array_get(whole, 0), "Plan");
    *out = (estimate){.cost = json_number_value(json_object_get(plan, "Total Cost")),
                      .rows = rows_below(plan)};
    bool read = plan != NULL;
    json_decref(whole);
    return read ? NULL : mr__error(MR_E_INTERNAL, "the server's plan could not be read");
}

/* One number as an expression; `exact` false when it is the planner's. */
static mr_error *put_count(PGconn *conn, const mr_queue_source *source, const char *template,
                           mr_buf *out, bool *exact)
{
    MR_AUTO_BUF sql = {0};
    MR_TRY(mr__queue_expand(source, template, &sql));
    estimate guess;
    MR_TRY(ask_planner(conn, mr__buf_text(&sql), &guess));
    *exact = guess.cost <= DEAR;
    if (*exact)
        mr__buf_printf(out, "(%s)", mr__buf_text(&sql));
    else
        mr__buf_printf(out, "%" PRId64 "::int8", guess.rows);
    return NULL;
}

/* "least(c.queued, 10000) AS queued", and what the reader has to know of it in `rough`. */
static void put_number(const char *column, bool exact, mr_buf *select, mr_buf *rough)
{
    if (exact) {
        mr__buf_printf(select, ", least(mr_c.%s, %d) AS %s", column, BOUND, column);
        mr__buf_printf(rough, ", '%s', CASE WHEN mr_c.%s > %d THEN 'at least' END", column, column,
                       BOUND);
    } else {
        mr__buf_printf(select, ", mr_c.%s", column);
        mr__buf_printf(rough, ", '%s', 'estimate'", column);
    }
}

static mr_error *put_states(PGconn *conn, const mr_queue_source *source, mr_buf *inner,
                            mr_buf *select, mr_buf *rough)
{
    for (int i = 0; i < NUMBERS; i++) {
        MR_AUTO_BUF template = {0};
        mr__buf_printf(&template,
                       "SELECT count(*) FROM (SELECT FROM {view} WHERE %s{condition.v}"
                       " LIMIT %d) AS mr_n",
                       numbers[i].condition, BOUND + 1);
        bool exact = true;
        mr__buf_puts(inner, i == 0 ? "" : ", ");
        MR_TRY(put_count(conn, source, mr__buf_text(&template), inner, &exact));
        mr__buf_printf(inner, " AS %s", numbers[i].column);
        put_number(numbers[i].column, exact, select, rough);
    }
    return NULL;
}

/* Running jobs that the resetter will take. They are in the table; the view need not show
 * heartbeats. */
static mr_error *put_stalled(PGconn *conn, const mr_queue_source *source, mr_buf *inner,
                             mr_buf *select, mr_buf *rough)
{
    MR_AUTO_BUF template = {0};
    mr__buf_printf(&template,
                   "SELECT count(*) FROM (SELECT FROM {table} WHERE {stalled}{belongs.t}"
                   " LIMIT %d) AS mr_n",
                   BOUND + 1);
    bool exact = true;
    mr__buf_puts(inner, ", ");
    MR_TRY(put_count(conn, source, mr__buf_text(&template), inner, &exact));
    mr__buf_puts(inner, " AS stalled");
    put_number("stalled", exact, select, rough);
    return NULL;
}

static mr_error *put_wait(PGconn *conn, const mr_queue_store *store, mr_buf *inner, mr_buf *select,
                          mr_buf *rough)
{
    const char *sql = store->sql.text[MR_QUEUE_WAIT];
    estimate guess;
    MR_TRY(ask_planner(conn, sql, &guess));
    bool cheap = guess.cost <= DEAR;
    mr__buf_printf(inner, ", (%s)::int8 AS wait", cheap ? sql : "NULL");
    mr__buf_puts(select, ", round(coalesce(mr_c.wait, 0) / 1000000.0, 1) AS oldest_wait_seconds");
    mr__buf_printf(rough, ", 'oldest_wait_seconds', %s", cheap ? "NULL" : "'unknown'");
    return NULL;
}

static void put_head(const char *queue, const mr_qname *table, mr_buf *out)
{
    MR_AUTO_BUF name = {0};
    mr__qname_quote(&name, table);
    mr__buf_puts(out, "SELECT ");
    mr__literal_quote(out, queue);
    mr__buf_puts(out, "::text AS queue, ");
    mr__literal_quote(out, mr__buf_text(&name));
    mr__buf_puts(out, "::text AS \"table\"");
}

mr_error *mr__queue_summary(PGconn *conn, const mr_queue_store *store, mr_buf *out)
{
    mr_queue_source source = mr__queue_source(store);
    MR_AUTO_BUF inner = {0};
    MR_AUTO_BUF rough = {0};
    put_head(store->mapping.queue, &store->shape.table, out);
    MR_TRY(put_states(conn, &source, &inner, out, &rough));
    MR_TRY(put_stalled(conn, &source, &inner, out, &rough));
    MR_TRY(put_wait(conn, store, &inner, out, &rough));
    mr__buf_printf(out,
                   ", pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object(%s)) AS rough,"
                   " NULL::text AS problem FROM (SELECT %s) AS mr_c",
                   mr__buf_text(&rough) + 2, mr__buf_text(&inner));
    return inner.failed || rough.failed || out->failed ? mr__error_nomem() : NULL;
}

void mr__queue_summary_broken(const char *queue, const char *table, const char *problem,
                              mr_buf *out)
{
    mr__buf_puts(out, "SELECT ");
    mr__literal_quote(out, queue);
    mr__buf_puts(out, "::text AS queue, ");
    mr__literal_quote(out, table);
    mr__buf_puts(out, "::text AS \"table\"");
    for (int i = 0; i < NUMBERS; i++)
        mr__buf_printf(out, ", NULL::int8 AS %s", numbers[i].column);
    mr__buf_puts(out, ", NULL::int8 AS stalled, NULL::numeric AS oldest_wait_seconds,"
                      " '{}'::jsonb AS rough, ");
    mr__literal_quote(out, problem);
    mr__buf_puts(out, "::text AS problem");
}
