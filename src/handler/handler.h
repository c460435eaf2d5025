/* What runs for a batch: C callbacks, a statement an event, a statement a batch, a child process, a
 * plugin. */
#ifndef MR_HANDLER_HANDLER_H
#define MR_HANDLER_HANDLER_H

#include "base/log.h"
#include "log/event.h"
#include "log/filter.h"
#include "log/shape.h"
#include "pg/session.h"

/* One batch as a handler sees it: the matching events of (from, to], in order. */
typedef struct mr_run {
    const mr_event *const *events;
    size_t count;
    int64_t from, to;
    bool some; /* not all that match in (from, to] are meant, only those listed */
    const mr_log_shape *shape;
    const char *consumer; /* its name, or its slot's */
    int attempt;          /* 1 for the first */
    int64_t deadline;     /* on `clock`: the handler must be done by then */
    const mr_clock *clock;
    const atomic_bool *cancelled; /* true: give up soon */
    /* Without a transaction: when to come back with what is done, see mr__run_enough. */
    int64_t save_by;             /* on `clock`; 0 = whenever */
    const atomic_bool *recalled; /* true: at once; NULL = never */
    mr_logger *logger;
} mr_run;

typedef struct mr_handler mr_handler;
/* What a handler that was asked before the transaction answered; its own affair. */
typedef struct mr_answers mr_answers;

/* Functions run on executors' threads. The slots of a partitioned consumer share one handler, so
 * they may run at the same time for different batches. NULL = the handler has no such thing. */
struct mr_handler {
    /* Handles the batch in its transaction. Tags what it queues with the index of the event it is
     * for, and leaves the tag at the event that failed. */
    mr_error *(*run)(mr_handler *handler, mr_tx *tx, const mr_run *run);
    /* Does the slow part before the transaction begins, so that none is open meanwhile: `run` is
     * then replaced by talk, begin, apply, commit. The first `*good` events are answered well (set
     * on failure too); the error is the next one's, which is certain with `*sure` only. `*answers`
     * may be set with an error. Every event has its payload. */
    mr_error *(*talk)(mr_handler *handler, const mr_run *run, size_t *good, bool *sure,
                      mr_answers **answers);
    /* Queues what the first `good` answers ask for, tagged by event. */
    mr_error *(*apply)(mr_handler *handler, mr_tx *tx, const mr_run *run, const mr_answers *answers,
                       size_t good);
    void (*forget)(mr_answers *answers); /* accepts NULL */
    /* Handles the batch with no transaction at all, for detached consumers. The first `*good`
     * events are handled, on failure too; fewer than all without an error when mr__run_enough said
     * so. Every event has its payload. */
    mr_error *(*deliver)(mr_handler *handler, const mr_run *run, size_t *good);
    /* Asks the server whether the handler's text makes sense, and whatever else can be checked. */
    mr_error *(*check)(mr_handler *handler, PGconn *conn);
    void (*free)(mr_handler *handler);
    int references;  /* beyond the first; loop thread only */
    bool counts;     /* `*good` of deliver tells exactly which event failed */
    bool wants_rows; /* false: its events stay on the server, light windows do */
};

/* Between two events of a batch without a transaction: whether to go on. */
mr_error *mr__run_check(const mr_run *run) MR_MUST_CHECK;
/* Whether to begin no further event: what is done is due to be saved, or somebody wants it back.
 * Asked after at least one was handled. */
bool mr__run_enough(const mr_run *run);

mr_error *mr__handler_event(mr_event_fn function, void *user, mr_handler **out) MR_MUST_CHECK;
mr_error *mr__handler_batch(mr_batch_fn function, void *user, mr_handler **out) MR_MUST_CHECK;
mr_error *mr__handler_sql(const char *text, mr_handler **out) MR_MUST_CHECK;
mr_error *mr__handler_sql_batch(const char *text, const mr_log_shape *shape,
                                const mr_filter *filter, mr_handler **out) MR_MUST_CHECK;
/* `command` is a list in its one-string form (base/list.h): program and arguments. */
mr_error *mr__handler_exec(const char *consumer, const char *command, mr_logger *logger,
                           mr_handler **out) MR_MUST_CHECK;
mr_error *mr__handler_plugin(const char *consumer, const char *path, const char *config,
                             mr_handler **out) MR_MUST_CHECK;
mr_handler *mr__handler_ref(mr_handler *handler);
void mr__handler_free(mr_handler *handler); /* gives up one reference */

/* A payload that was too large to be read with its window is fetched now, in the batch's
 * transaction. `copy` becomes the event with its payload, which lives in `*rows`. */
mr_error *mr__handler_load(mr_tx *tx, const mr_log_shape *shape, const mr_event *event,
                           mr_event *copy, PGresult **rows) MR_MUST_CHECK;
/* Lets the server parse a handler's statement without running it. */
mr_error *mr__handler_parse(PGconn *conn, const char *what, const char *sql) MR_MUST_CHECK;
/* The same with the types of its parameters. */
mr_error *mr__handler_parse_typed(PGconn *conn, const char *what, const char *sql, int count,
                                  const Oid *types) MR_MUST_CHECK;

#endif
