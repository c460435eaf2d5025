/* One batch from window to checkpoint: fence, handler, audit, dead letters, commit, in one
 * pipelined transaction. Built on the loop thread, run on an executor's, handed back. */
#ifndef MR_CONSUMER_BATCH_H
#define MR_CONSUMER_BATCH_H

#include "cluster/names.h"
#include "consumer/policy.h"
#include "handler/handler.h"
#include "log/window.h"

/* Statements of every batch, rendered once for a worker. */
typedef struct mr_batch_sql {
    char *advance; /* the fence and the new checkpoint in one */
    char *skips;   /* the audit of holes */
    char *letters; /* dead letters */
    char *passed;  /* the audit of events that somebody asked to skip */
} mr_batch_sql;

mr_error *mr__batch_sql_render(const mr_names *names, mr_batch_sql *out) MR_MUST_CHECK;
void mr__batch_sql_free(mr_batch_sql *sql);

/* Why an event is given up. */
typedef struct mr_sentence {
    int64_t position; /* 0 = none is */
    int attempts;
    int64_t first_failed; /* clock microseconds */
    mr_error *error;      /* owned */
} mr_sentence;

/* An event that the batch passes without handing it to the handler. */
typedef struct mr_aside {
    enum { MR_ASIDE_SKIP, MR_ASIDE_POISON, MR_ASIDE_PARKED } kind;
    const mr_event *event;
    mr_sentence sentence; /* POISON */
} mr_aside;

typedef struct mr_batch {
    /* What to do; strings are borrowed from the worker. */
    const char *consumer, *worker_id, *strategy;
    const mr_batch_sql *sql; /* NULL: the checkpoint and the audit are kept elsewhere */
    const mr_log_shape *shape;
    const mr_clock *clock;
    const atomic_bool *cancelled;
    const atomic_bool *recalled; /* true: somebody waits for its end; NULL = never */
    mr_logger *logger;
    mr_handler *handler;
    mr_mode mode;
    bool by_lock;  /* owned by a lock: no assignment to compare with */
    bool detached; /* the handler runs without a transaction; the checkpoint is another batch's */
    int64_t begun, save_by; /* detached: when it was handed over, and when to come back; 0 = any */
    bool some; /* other events of its range match the filter too: those of other slots */
    int attempt;
    int64_t timeout;
    int64_t expected, target; /* the checkpoint before and after */
    int64_t epoch;            /* the controls that it was built by; -1 = whatever they are */
    int64_t server;           /* where its events were read, see MR_SERVER_SQL; 0 = unknown */
    const mr_event **events;
    size_t count, capacity;
    mr_aside *asides;
    size_t aside_count, aside_capacity;
    mr_window **windows; /* referenced */
    size_t window_count;
    mr_hole *holes; /* passed over by this batch */
    size_t hole_count;
    mr_dead_letter_fn on_dead_letter; /* NULL = nobody wants to know */
    void *on_dead_letter_user;
    void *owner; /* whoever built it */
    /* What came of it. Without an error everything up to `reached` is done, which is the target
     * unless time ran out or it came back early; with one, too, but then `reached` may be where it
     * began. */
    mr_error *error;
    mr_failure failure;
    int64_t reached;
    size_t handled;
    bool fenced; /* for whoever keeps it after a failure */
    int64_t round_trips;
    struct mr_batch *next;
} mr_batch;

/* The batch as it leaves the loop; NULL when memory is short. */
mr_batch *mr__batch_new(void);
void mr__batch_free(mr_batch *batch);
mr_error *mr__batch_add_event(mr_batch *batch, const mr_event *event) MR_MUST_CHECK;
/* `sentence` says why for a poison event, and is copied; NULL otherwise. */
mr_error *mr__batch_add_aside(mr_batch *batch, int kind, const mr_event *event,
                              const mr_sentence *sentence) MR_MUST_CHECK;
mr_error *mr__batch_add_window(mr_batch *batch, mr_window *window) MR_MUST_CHECK;
/* Adds those of the window's holes that lie in (from, to], and notes which server showed it. Called
 * for each window that the batch passes, also without events. */
mr_error *mr__batch_add_holes(mr_batch *batch, const mr_window *window, int64_t from,
                              int64_t to) MR_MUST_CHECK;
/* Moves what is to be written about everything up to `reached` (holes, asides, and the windows that
 * keep them) from a detached batch to the one that will save its checkpoint. */
mr_error *mr__batch_pass_on(mr_batch *from, mr_batch *to, int64_t reached) MR_MUST_CHECK;

/* Runs it on a session; the outcome is in the batch. */
void mr__batch_run(mr_batch *batch, mr_session *session);
/* Where sessions come from. */
typedef struct mr_sessions {
    mr_error *(*open)(void *user, mr_session **session); /* gives the same until it is left */
    void (*leave)(void *user); /* none is needed while the handler runs; NULL = keep it */
    void *user;
} mr_sessions;

/* Runs a detached one, with a session only while a payload is fetched first. */
void mr__batch_deliver(mr_batch *batch, const mr_sessions *sessions);

/* ---- batch_write.c: the statements around the handler's own ---- */
mr_error *mr__batch_advance(const mr_batch *batch, mr_tx *tx, int64_t to) MR_MUST_CHECK;
/* Holes, skipped events and dead letters up to `upto`. */
mr_error *mr__batch_audit(const mr_batch *batch, mr_tx *tx, int64_t upto) MR_MUST_CHECK;

#endif
