/* A worker's innards, shared by the files of this room: the life cycle, start-up and dispatch. */
#ifndef MR_RUNTIME_WORKER_H
#define MR_RUNTIME_WORKER_H

#include "base/uuid.h"
#include "cluster/names.h"
#include "cluster/picture.h"
#include "consumer/batch.h"
#include "log/reader.h"
#include "observe/metrics.h"
#include "runtime/conf.h"
#include "runtime/executor.h"

#include <jansson.h>

/* AWAY: another worker's, or nobody's. LOADING: its checkpoint is being read. IDLE: looks for
 * events. RUNNING: a batch is with an executor. RESTING: waits for a timer (after a failure, or
 * batch_pause). PAUSED: stays until a restart. */
typedef enum mr_place_state {
    MR_PLACE_AWAY,
    MR_PLACE_LOADING,
    MR_PLACE_IDLE,
    MR_PLACE_RUNNING,
    MR_PLACE_RESTING,
    MR_PLACE_PAUSED,
} mr_place_state;

/* A consumer as it runs in this process. Loop thread only, but for what a batch borrows. */
typedef struct mr_place {
    mr_worker *worker;
    const mr_consumer *spec; /* the conf's */
    const char *name;        /* the spec's */
    mr_filter filter;
    mr_handler *handler;
    int64_t batch_size, batch_pause, batch_timeout, max_failures;
    bool fatal;
    mr_place_state state;
    int64_t saved;    /* the checkpoint as the database has it */
    int64_t target;   /* where the batch in flight will bring it */
    mr_batch *draft;  /* what was gathered beyond it and not yet handed over */
    int64_t dirty_at; /* when an advance without events began to wait, 0 = none waits */
    int failures;     /* in a row */
    int troubles;     /* in a row, that were nobody's fault */
    bool owns_spec;   /* it came while the worker ran, and its spec goes with it */
    bool owned;       /* assigned to this worker, as far as it knows */
    bool removed;     /* goes once its batch is over */
    bool missing;     /* the last load did not find its checkpoint */
    bool reload;      /* the checkpoint must be read again before the next batch */
    uv_timer_t timer;
    mr_error *last_error;
} mr_place;

/* The worker's part in the fleet; control.c. */
typedef struct mr_control {
    char *register_sql, *tick_sql, *assign_sql, *bury_sql, *leave_sql, *listen_sql;
    char leader_lock[24]; /* key of the leader's advisory lock */
    char channel[32];     /* where leaders tell that assignments changed */
    int registered;       /* 0 = no, 1 = without its session lock, 2 = fully */
    bool busy;            /* a flight is under way */
    bool leader;
    bool lost;      /* declared dead: registers anew once its batches are over */
    bool beat_sent; /* the tick under way stamps the heartbeat */
    bool tell;      /* something changed that others should see soon */
    int64_t tick_at, beat_at, led_at;
    mr_absent absent;
} mr_control;

/* A consumer to add or a name to remove, on its way to the loop. */
typedef struct mr_change {
    struct mr_change *next;
    mr_place *add;
    char *remove;
} mr_change;

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
    char *checkpoints_sql, *published_sql, *notify_sql;
    mr_control fleet;
    mr_place **places;
    size_t place_count;
    int running; /* batches with the executors */

    mr_life life;
    uv_loop_t loop;
    atomic_bool loop_made; /* read by calls from any thread */
    /* Stop, wake and finished batches come through it. A descriptor of our own, not the loop's: a
     * stop may come from a signal handler when the loop is long gone. */
    int signal_fd;
    uv_poll_t signal;
    uv_timer_t heartbeat, shutdown;
    mr_aconn *control, *listener; /* the listener only with a connection string of its own */
    mr_reader *reader;
    bool light; /* windows without payloads do */
    mr_executors *executors;
    mr_error *fatal;
    int64_t once_target; /* -1 until the head is known */

    atomic_int stops; /* how often mr_worker_stop was called */
    pthread_mutex_t
        start_lock; /* held while the worker starts: other threads' calls wait for that */
    pthread_mutex_t changes_lock; /* guards changes and the list of places for other threads */
    mr_change *changes;
    atomic_bool woken;     /* mr_worker_wake was called */
    atomic_bool cancelled; /* running batches must give up */
    _Atomic int64_t metrics[MR_METRIC_COUNT];
    mr_reader_counts read; /* the reader's own counters */
};

/* ---- startup.c: what happens once, on a connection of its own, before the loop ---- */
/* Everything that can be checked: server, schema, log, handlers. Fills in shape and handlers. */
mr_error *mr__worker_prepare(mr_worker *worker, PGconn *conn) MR_MUST_CHECK;
/* Makes missing checkpoints at their start. */
mr_error *mr__worker_enrol(mr_worker *worker, PGconn *conn) MR_MUST_CHECK;
/* One consumer: its handler, checked against the server, and its checkpoint. */
mr_error *mr__worker_prepare_place(mr_worker *worker, PGconn *conn, mr_place *place) MR_MUST_CHECK;
mr_error *mr__worker_enrol_place(mr_worker *worker, PGconn *conn, mr_place *place) MR_MUST_CHECK;
/* The names of all consumers as a text[] literal; NULL when memory is short. free(). */
char *mr__worker_names(const mr_worker *worker);
mr_error *mr__worker_statements(mr_worker *worker) MR_MUST_CHECK;

/* ---- dispatch.c: consumers between windows and executors ---- */
void mr__dispatch_load(mr_worker *worker);     /* the reader is up: read all checkpoints, follow */
void mr__dispatch_progress(mr_worker *worker); /* something new may be there for everybody */
void mr__dispatch_done(mr_worker *worker);     /* executors finished batches */
void mr__dispatch_timer(uv_timer_t *timer);
void mr__dispatch_reload(mr_worker *worker); /* read checkpoints again */
/* After consumers moved: what the reader must keep, and whether a `once` run is done. */
void mr__dispatch_settle(mr_worker *worker);
/* The one place where a consumer's state changes. */
void mr__place_set_state(mr_place *place, mr_place_state state, const char *why);
void mr__place_drop_draft(mr_place *place); /* forgets what was gathered and not handed over */

/* ---- ownership.c ---- */
/* Not ours any more; waits for its batch, if one runs, by being called again. */
void mr__place_let_go(mr_place *place);
/* What the tick says this worker owns: a JSON array of names, NULL for nothing. */
void mr__dispatch_own(mr_worker *worker, const json_t *owned);
/* Takes a place into the loop, or lets it go. */
void mr__dispatch_add(mr_worker *worker, mr_place *place);
void mr__dispatch_remove(mr_worker *worker, const char *name);
/* Nothing is held that a stop must wait for. */
bool mr__dispatch_quiet(const mr_worker *worker);

/* ---- control.c: the fleet ---- */
mr_error *mr__control_init(mr_worker *worker) MR_MUST_CHECK;
void mr__control_free(mr_worker *worker);
void mr__control_state(mr_worker *worker, bool up);
void mr__control_tell(mr_worker *worker);  /* the next tick carries news */
void mr__control_look(mr_worker *worker);  /* tick now */
void mr__control_quiet(mr_worker *worker); /* a batch is over; a lost registration may go on */
/* Tells the fleet; false when it cannot be told. `for_good` removes the registration. */
bool mr__control_leave(mr_worker *worker, bool for_good, mr_flight_fn callback);

/* ---- places.c: consumers as they run ---- */
/* A place for a spec, not yet in the loop. Borrows the spec. */
mr_error *mr__place_new(mr_worker *worker, const mr_consumer *spec, mr_place **out) MR_MUST_CHECK;
void mr__place_free(mr_place *place); /* its timer must be closed */
void mr__place_apply_changes(mr_worker *worker);

/* ---- worker.c ---- */
/* Wakes the loop. Any thread, and signal handlers. */
void mr__worker_signal(mr_worker *worker);
/* Ends the run with an error (taken); the first one counts. */
void mr__worker_fail(mr_worker *worker, mr_error *error);
void mr__worker_stop_begin(mr_worker *worker, const char *why);
void mr__worker_settle_stop(mr_worker *worker); /* goes on with a stop once batches are done */
static inline void mr__count(mr_worker *worker, mr_metric metric, int64_t n)
{
    atomic_fetch_add_explicit(&worker->metrics[metric], n, memory_order_relaxed);
}

#endif
