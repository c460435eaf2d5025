/* One batch from window to checkpoint: fence, handler, audit of holes, commit, in one pipelined
 * transaction. Built on the loop thread, run on an executor's, handed back. */
#ifndef MR_CONSUMER_BATCH_H
#define MR_CONSUMER_BATCH_H

#include "cluster/names.h"
#include "handler/handler.h"
#include "log/window.h"

/* Statements of every batch, rendered once for a worker. */
typedef struct mr_batch_sql {
    char *advance; /* the fence and the new checkpoint in one */
    char *skips;   /* the audit of holes */
} mr_batch_sql;

mr_error *mr__batch_sql_render(const mr_names *names, mr_batch_sql *out) MR_MUST_CHECK;
void mr__batch_sql_free(mr_batch_sql *sql);

typedef struct mr_batch {
    /* What to do; strings are borrowed from the worker. */
    const char *consumer, *worker_id, *strategy;
    const mr_batch_sql *sql;
    const mr_log_shape *shape;
    const mr_clock *clock;
    mr_handler *handler;
    int64_t timeout;
    int64_t expected, target; /* the checkpoint before and after */
    int64_t server;           /* where its events were read, see MR_SERVER_SQL; 0 = unknown */
    const mr_event **events;
    size_t count, capacity;
    mr_window **windows; /* referenced */
    size_t window_count;
    mr_hole *holes; /* passed over by this batch */
    size_t hole_count;
    void *owner; /* whoever built it */
    /* What came of it. */
    mr_error *error;
    bool handlers_own;       /* the handler returned it; no statement failed */
    int64_t failed_position; /* of the event whose statement or handler failed, 0 when unknown */
    int64_t round_trips;
    struct mr_batch *next;
} mr_batch;

/* The batch as it leaves the loop; NULL when memory is short. */
mr_batch *mr__batch_new(void);
void mr__batch_free(mr_batch *batch);
mr_error *mr__batch_add_event(mr_batch *batch, const mr_event *event) MR_MUST_CHECK;
mr_error *mr__batch_add_window(mr_batch *batch, mr_window *window) MR_MUST_CHECK;
/* Adds those of the window's holes that lie in (from, to], and notes which server showed it. Called
 * for each window that the batch passes, also without events. */
mr_error *mr__batch_add_holes(mr_batch *batch, const mr_window *window, int64_t from,
                              int64_t to) MR_MUST_CHECK;
/* Runs it on a session; the outcome is in the batch. */
void mr__batch_run(mr_batch *batch, mr_session *session);

#endif
