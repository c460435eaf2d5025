/* Handlers that are C functions: one call an event, or one a batch. */
#include "handler/handler.h"

#include "log/rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct callback {
    mr_handler base;
    mr_event_fn on_event;
    mr_batch_fn on_batch;
    void *user;
} callback;

mr_error *mr__handler_load(mr_tx *tx, const mr_log_shape *shape, const mr_event *event,
                           mr_event *copy, PGresult **rows)
{
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT ");
    mr__rows_column(&sql, shape, MR_COL_PAYLOAD);
    mr__buf_puts(&sql, shape->payload_kind == MR_PAYLOAD_JSONB ? "::text FROM " : " FROM ");
    mr__qname_quote(&sql, &shape->table);
    mr__buf_puts(&sql, " WHERE ");
    mr__rows_column(&sql, shape, MR_COL_POSITION);
    mr__buf_puts(&sql, " = $1::int8");
    if (sql.failed)
        return mr__error_nomem();
    char position[24];
    (void)snprintf(position, sizeof(position), "%" PRId64, event->position);
    const char *values[] = {position};
    MR_AUTO_RESULT found = NULL;
    MR_TRY(mr__tx_query_params(tx, sql.data, 1, NULL, values, NULL, NULL, 1, &found));
    if (PQntuples(found) != 1)
        return mr__error(MR_E_LOG, "the event at position %" PRId64 " was deleted from the log",
                         event->position);
    *copy = *event;
    copy->payload = PQgetvalue(found, 0, 0);
    copy->payload_length = (size_t)PQgetlength(found, 0, 0);
    *rows = found;
    found = NULL;
    return NULL;
}

static mr_error *call_one(callback *c, mr_tx *tx, const mr_run *run, const mr_event *event)
{
    if (event->payload != NULL)
        return c->on_event(tx, event, c->user);
    mr_event whole;
    MR_AUTO_RESULT rows = NULL;
    MR_TRY(mr__handler_load(tx, run->shape, event, &whole, &rows));
    return c->on_event(tx, &whole, c->user);
}

static mr_error *run_events(mr_handler *handler, mr_tx *tx, const mr_run *run)
{
    callback *c = (callback *)handler;
    for (size_t i = 0; i < run->count; i++) {
        mr__tx_tag(tx, (int)i);
        MR_TRY(call_one(c, tx, run, run->events[i]));
    }
    return NULL;
}

/* Copies of a batch's events with the payloads that were left on the server. */
typedef struct whole_batch {
    const mr_event **events;
    mr_event *copies;
    PGresult **rows;
    size_t loaded;
} whole_batch;

static mr_error *load_missing(mr_tx *tx, const mr_run *run, whole_batch *whole)
{
    for (size_t i = 0; i < run->count; i++) {
        whole->events[i] = run->events[i];
        if (run->events[i]->payload != NULL)
            continue;
        mr__tx_tag(tx, (int)i);
        MR_TRY(mr__handler_load(tx, run->shape, run->events[i], &whole->copies[i],
                                &whole->rows[whole->loaded]));
        whole->loaded++;
        whole->events[i] = &whole->copies[i];
    }
    mr__tx_tag(tx, -1);
    return NULL;
}

static mr_error *run_whole(callback *c, mr_tx *tx, const mr_run *run)
{
    whole_batch whole = {.events = calloc(run->count, sizeof(*whole.events)),
                         .copies = calloc(run->count, sizeof(*whole.copies)),
                         .rows = calloc(run->count, sizeof(PGresult *))};
    mr_error *error = NULL;
    if (whole.events == NULL || whole.copies == NULL || whole.rows == NULL)
        error = mr__error_nomem();
    if (error == NULL)
        error = load_missing(tx, run, &whole);
    if (error == NULL)
        error = c->on_batch(tx, whole.events, run->count, c->user);
    for (size_t i = 0; i < whole.loaded; i++)
        PQclear(whole.rows[i]);
    free(whole.events);
    free(whole.copies);
    free(whole.rows);
    return error;
}

static mr_error *run_batch(mr_handler *handler, mr_tx *tx, const mr_run *run)
{
    callback *c = (callback *)handler;
    for (size_t i = 0; i < run->count; i++)
        if (run->events[i]->payload == NULL)
            return run_whole(c, tx, run);
    return c->on_batch(tx, run->events, run->count, c->user);
}

static void callback_free(mr_handler *handler)
{
    free(handler);
}

static mr_error *callback_new(callback fields, mr_handler **out)
{
    callback *c = malloc(sizeof(*c));
    if (c == NULL)
        return mr__error_nomem();
    *c = fields;
    *out = &c->base;
    return NULL;
}

mr_error *mr__handler_event(mr_event_fn function, void *user, mr_handler **out)
{
    return callback_new(
        (callback){.base = {.run = run_events, .free = callback_free, .wants_rows = true},
                   .on_event = function,
                   .user = user},
        out);
}

mr_error *mr__handler_batch(mr_batch_fn function, void *user, mr_handler **out)
{
    return callback_new(
        (callback){.base = {.run = run_batch, .free = callback_free, .wants_rows = true},
                   .on_batch = function,
                   .user = user},
        out);
}

void mr__handler_free(mr_handler *handler)
{
    if (handler != NULL)
        handler->free(handler);
}
