/* Housekeeping of the built-in table of jobs: one statement now and then, which does something in
 * whichever worker gets the lock. */
#include "base/text.h"
#include "cluster/template.h"
#include "runtime/lane.h"
#include "runtime/worker.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { SOON = 100 }; /* milliseconds */

static void set_gauge(mr_worker *w, mr_metric metric, const json_t *report, const char *name)
{
    atomic_store(&w->metrics[metric], json_integer_value(json_object_get(report, name)));
}

/* NULL = another worker has them. */
static void take_gauges(mr_worker *w, const json_t *report)
{
    set_gauge(w, MR_METRIC_JOBS_IN_LINE, report, "in_line");
    set_gauge(w, MR_METRIC_JOBS_DEAD, report, "dead");
    set_gauge(w, MR_METRIC_JOBS_OLDEST, report, "oldest");
}

/* See sql/functions/keep_house.sql. */
static void take_report(mr_worker *w, const json_t *report)
{
    json_int_t stuck = json_integer_value(json_object_get(report, "stuck"));
    const json_t *days = json_object_get(report, "days"), *after = json_object_get(report, "after");
    for (size_t i = 0; i < json_array_size(days); i++)
        mr__log(&w->logger, MR_INFO, "archive", "day=%s",
                json_string_value(json_array_get(days, i)));
    if (stuck > 0) {
        mr__count(w, MR_METRIC_KEYS_SWEPT, stuck);
        mr__log(&w->logger, MR_WARN, "keys were promoted by the sweep", "keys=%" PRId64,
                (int64_t)stuck);
    }
    take_gauges(w, report);
    free(w->house_after);
    w->house_after = NULL;
    if (json_array_size(after) != 2)
        return;
    MR_AUTO_BUF array = {0};
    for (size_t i = 0; i < 2; i++)
        mr__array_add(&array, i == 0, json_string_value(json_array_get(after, i)));
    mr__buf_putc(&array, '}');
    w->house_after = mr__buf_take(&array);
}

static void on_kept(void *user, PGresult **results, mr_error *error)
{
    mr_worker *w = user;
    if (error != NULL) {
        if (mr_error_code(error) != MR_E_CANCELLED)
            mr__log(&w->logger, MR_WARN, "housekeeping failed", "error=%s",
                    mr_error_message(error));
        mr_error_free(error);
        return;
    }
    if (PQgetisnull(results[0], 0, 0) != 0) { /* another has the lock */
        take_gauges(w, NULL);
        return;
    }
    json_t *report = json_loads(PQgetvalue(results[0], 0, 0), 0, NULL);
    take_report(w, report);
    json_decref(report);
    if (w->house_after != NULL)
        mr__house_soon(w); /* more keys: it goes through all of them, a bounded piece at a time */
}

static void on_house_timer(uv_timer_t *timer)
{
    mr_worker *w = timer->data;
    if (w->life != MR_LIFE_RUNNING || !mr__aconn_up(mr__worker_jobs_conn(w)))
        return;
    mr_flight_statement statement = {.sql = w->house_sql, .count = 1, .values = {w->house_after}};
    mr__aconn_send(mr__worker_jobs_conn(w), &statement, 1, on_kept, w);
}

void mr__house_soon(mr_worker *w)
{
    uint64_t interval = (uint64_t)(mr__bag_number(&w->conf->bag, MR_OPT_HOUSE_INTERVAL) / 1000);
    if (w->house_sql != NULL && uv_timer_get_due_in(&w->house) > SOON)
        (void)uv_timer_start(&w->house, on_house_timer, SOON, interval);
}

void mr__house_start(mr_worker *w)
{
    bool any = false;
    for (size_t i = 0; i < w->lane_count; i++)
        any = any || w->lanes[i]->builtin;
    if (!any)
        return;
    const mr_bag *bag = &w->conf->bag;
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT ");
    mr__names_function(&w->names, "keep_house", &sql);
    mr__buf_printf(&sql,
                   "(%" PRId64 " * interval '1 microsecond', %" PRId64
                   " * interval '1 microsecond', $1::text[])",
                   mr__bag_number(bag, MR_OPT_RETENTION), mr__bag_number(bag, MR_OPT_IDEMPOTENCY));
    free(w->house_sql);
    w->house_sql = mr__buf_take(&sql);
    uint64_t interval = (uint64_t)(mr__bag_number(bag, MR_OPT_HOUSE_INTERVAL) / 1000);
    /* Workers that start together do not all ask at once. */
    uint64_t first = interval / 2 + (uint64_t)mr__random_upto((int64_t)(interval / 2));
    if (w->house_sql != NULL)
        (void)uv_timer_start(&w->house, on_house_timer, first, interval);
}
