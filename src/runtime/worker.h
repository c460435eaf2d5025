/* A worker's innards, shared by the files of this room: the life cycle, start-up and dispatch. */
#ifndef MR_RUNTIME_WORKER_H
#define MR_RUNTIME_WORKER_H

#include "base/uuid.h"
#include "cluster/names.h"
#include "consumer/batch.h"
#include "log/reader.h"
#include "observe/metrics.h"
#include "runtime/conf.h"
#include "runtime/executor.h"

/* LOADING: its checkpoint is being read. IDLE: looks for events. RUNNING: a batch is with an
 * executor. RESTING: waits for a timer (after a failure, or batch_pause). PAUSED: stays until a
 * restart. */
typedef enum mr_place_state {
    MR_PLACE_LOADING,
    MR_PLACE_IDLE,
    MR_PLACE_RUNNING,
    MR_PLACE_RESTING,
    MR_PLACE_PAUSED,
} mr_place_state;

/* A consumer as it runs in this process. Loop thread only, but for what a batch borrows. */
typedef struct mr_place {
    mr_worker *worker;
    const char *name; /* the conf's */
    mr_filter filter;
    mr_handler *handler;
    int64_t batch_size, batch_pause, batch_timeout, max_failures;
    bool fatal;
    mr_place_state state;
    int64_t saved;    /* the checkpoint as the database has it */
    mr_batch *draft;  /* what was gathered beyond it and not yet handed over */
    int64_t dirty_at; /* when an advance without events began to wait, 0 = none waits */
    int failures;     /* in a row */
    int troubles;     /* in a row, that were nobody's fault */
    bool reload;      /* the checkpoint must be read again before the next batch */
    uv_timer_t timer;
    mr_error *last_error;
} mr_place;

typedef enum mr_life {
    MR_LIFE_NEW,
    MR_LIFE_RUNNING,
    MR_LIFE_STOPPING, /* batches finish */
    MR_LIFE_LEAVING,  /* the registration is being removed */
    MR_LIFE_CLOSING,  /* handles close */
    MR_LIFE_ENDED,
} mr_life;

struct mr_worker {
    mr_conf *conf;
    mr_names names;
    mr_log_spec log_spec;
    mr_log_shape shape;
    mr_logger logger;
    const mr_clock *clock;
    char id[MR_UUID_TEXT];
    char application[64];
    mr_batch_sql batch_sql;
    char *checkpoints_sql, *heartbeat_sql, *leave_sql, *published_sql;
    mr_place *places;
    size_t place_count;
    int running; /* batches with the executors */

    mr_life life;
    uv_loop_t loop;
    bool loop_made;
    uv_async_t signal; /* stop, wake and finished batches come through it */
    uv_timer_t heartbeat, shutdown;
    mr_aconn *control;
    mr_reader *reader;
    mr_executors *executors;
    mr_error *fatal;
    int64_t once_target; /* -1 until the head is known */

    atomic_int stops;      /* how often mr_worker_stop was called */
    atomic_bool woken;     /* mr_worker_wake was called */
    atomic_bool cancelled; /* running batches must give up */
    _Atomic int64_t metrics[MR_METRIC_COUNT];
    mr_reader_counts read; /* the reader's own counters */
};

/* ---- startup.c: what happens once, on a connection of its own, before the loop ---- */
/* Everything that can be checked: server, schema, log, handlers. Fills in shape and handlers. */
mr_error *mr__worker_prepare(mr_worker *worker, PGconn *conn) MR_MUST_CHECK;
/* Makes missing checkpoints at their start and the row in worker_nodes. */
mr_error *mr__worker_enrol(mr_worker *worker, PGconn *conn) MR_MUST_CHECK;
mr_error *mr__worker_statements(mr_worker *worker) MR_MUST_CHECK;

/* ---- dispatch.c: consumers between windows and executors ---- */
void mr__dispatch_load(mr_worker *worker);     /* the reader is up: read all checkpoints, follow */
void mr__dispatch_progress(mr_worker *worker); /* something new may be there for everybody */
void mr__dispatch_done(mr_worker *worker);     /* executors finished batches */
void mr__dispatch_timer(uv_timer_t *timer);
/* Nothing is held that a stop must wait for. */
bool mr__dispatch_quiet(const mr_worker *worker);

/* ---- worker.c ---- */
/* Ends the run with an error (taken); the first one counts. */
void mr__worker_fail(mr_worker *worker, mr_error *error);
void mr__worker_stop_begin(mr_worker *worker, const char *why);
void mr__worker_settle_stop(mr_worker *worker); /* goes on with a stop once batches are done */
static inline void mr__count(mr_worker *worker, mr_metric metric, int64_t n)
{
    atomic_fetch_add_explicit(&worker->metrics[metric], n, memory_order_relaxed);
}

#endif
