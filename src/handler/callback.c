/* Handlers that are C functions: one call an event, or one a batch. */
#include "handler/whole.h"

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

static mr_error *run_whole(callback *c, mr_tx *tx, const mr_run *run)
{
    mr_whole whole = {0};
    mr_error *error = mr__whole_load(tx, run, &whole);
    if (error == NULL)
        error = c->on_batch(tx, whole.events, run->count, c->user);
    mr__whole_free(&whole);
    return error;
}

static mr_error *run_batch(mr_handler *handler, mr_tx *tx, const mr_run *run)
{
    callback *c = (callback *)handler;
    if (mr__whole_needed(run))
        return run_whole(c, tx, run);
    return c->on_batch(tx, run->events, run->count, c->user);
}

mr_error *mr__run_check(const mr_run *run)
{
    if (run->cancelled != NULL && atomic_load(run->cancelled))
        return mr_error_new(MR_E_CANCELLED, true, "the batch was cancelled by a forced stop");
    if (run->clock != NULL && run->deadline > 0 && mr__clock_now(run->clock) >= run->deadline)
        return mr_error_new(MR_E_TIMEOUT, true, "the batch ran longer than batch_timeout");
    return NULL;
}

bool mr__run_enough(const mr_run *run)
{
    if (run->recalled != NULL && atomic_load(run->recalled))
        return true;
    return run->clock != NULL && run->save_by > 0 && mr__clock_now(run->clock) >= run->save_by;
}

/* Without a transaction: what the functions did stays done, so the good ones are counted. */
static mr_error *deliver_events(mr_handler *handler, const mr_run *run, size_t *good)
{
    callback *c = (callback *)handler;
    for (*good = 0; *good < run->count; ++*good) {
        if (*good > 0 && mr__run_enough(run))
            break;
        MR_TRY(mr__run_check(run));
        MR_TRY(c->on_event(NULL, run->events[*good], c->user));
    }
    return NULL;
}

static mr_error *deliver_batch(mr_handler *handler, const mr_run *run, size_t *good)
{
    callback *c = (callback *)handler;
    *good = 0;
    if (run->count == 0)
        return NULL;
    MR_TRY(c->on_batch(NULL, run->events, run->count, c->user));
    *good = run->count;
    return NULL;
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
    return callback_new((callback){.base = {.run = run_events,
                                            .deliver = deliver_events,
                                            .free = callback_free,
                                            .counts = true,
                                            .wants_rows = true},
                                   .on_event = function,
                                   .user = user},
                        out);
}

mr_error *mr__handler_batch(mr_batch_fn function, void *user, mr_handler **out)
{
    return callback_new((callback){.base = {.run = run_batch,
                                            .deliver = deliver_batch,
                                            .free = callback_free,
                                            .wants_rows = true},
                                   .on_batch = function,
                                   .user = user},
                        out);
}

mr_handler *mr__handler_ref(mr_handler *handler)
{
    handler->references++;
    return handler;
}

void mr__handler_free(mr_handler *handler)
{
    if (handler == NULL || handler->references-- > 0)
        return;
    handler->free(handler);
}
