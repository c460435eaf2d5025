/* What runs for a batch: C callbacks, a statement an event, a statement a batch. */
#ifndef MR_HANDLER_HANDLER_H
#define MR_HANDLER_HANDLER_H

#include "log/event.h"
#include "log/filter.h"
#include "log/shape.h"
#include "pg/session.h"

/* One batch as a handler sees it: the matching events of (from, to], in order. */
typedef struct mr_run {
    const mr_event *const *events;
    size_t count;
    int64_t from, to;
    const mr_log_shape *shape;
} mr_run;

typedef struct mr_handler mr_handler;
struct mr_handler {
    /* Runs on an executor's thread, one batch of a consumer at a time. Tags what it queues with the
     * index of the event it is for. */
    mr_error *(*run)(mr_handler *handler, mr_tx *tx, const mr_run *run);
    /* Asks the server whether the handler's text makes sense; NULL when there is nothing to ask. */
    mr_error *(*check)(mr_handler *handler, PGconn *conn);
    void (*free)(mr_handler *handler);
    bool wants_rows; /* false: its events stay on the server, light windows do */
};

mr_error *mr__handler_event(mr_event_fn function, void *user, mr_handler **out) MR_MUST_CHECK;
mr_error *mr__handler_batch(mr_batch_fn function, void *user, mr_handler **out) MR_MUST_CHECK;
mr_error *mr__handler_sql(const char *text, mr_handler **out) MR_MUST_CHECK;
mr_error *mr__handler_sql_batch(const char *text, const mr_log_shape *shape,
                                const mr_filter *filter, mr_handler **out) MR_MUST_CHECK;
void mr__handler_free(mr_handler *handler);

/* A payload that was too large to be read with its window is fetched now, in the batch's
 * transaction. `copy` becomes the event with its payload, which lives in `*rows`. */
mr_error *mr__handler_load(mr_tx *tx, const mr_log_shape *shape, const mr_event *event,
                           mr_event *copy, PGresult **rows) MR_MUST_CHECK;
/* Lets the server parse a handler's statement without running it. */
mr_error *mr__handler_parse(PGconn *conn, const char *what, const char *sql) MR_MUST_CHECK;

#endif
