/* A worker's innards, shared by the files of this room: the life cycle, start-up and dispatch. */
#ifndef MR_RUNTIME_WORKER_H
#define MR_RUNTIME_WORKER_H

#include "base/uuid.h"
#include "cluster/names.h"
#include "cluster/picture.h"
#include "consumer/gather.h"
#include "consumer/replay.h"
#include "log/reader.h"
#include "observe/metrics.h"
#include "runtime/conf.h"
#include "runtime/executor.h"
#include "runtime/lane.h"

#include <jansson.h>

/* AWAY: another worker's, or nobody's. LOADING: its checkpoint and controls are being read. IDLE:
 * looks for events. RUNNING: something of it is with an executor. RESTING: waits for a timer (after
 * a failure, or batch_pause). PAUSED: until somebody resumes it. */
typedef enum mr_place_state {
    MR_PLACE_AWAY,
    MR_PLACE_LOADING,
    MR_PLACE_IDLE,
    MR_PLACE_RUNNING,
    MR_PLACE_RESTING,
    MR_PLACE_PAUSED,
} mr_place_state;

/* A consumer, or one slot of a partitioned one, as it runs in this process. Loop thread only, but
 * for what a batch borrows. */
typedef struct mr_place {
    mr_worker *worker;
    const mr_consumer *spec; /* the conf's */
    char *name;              /* the consumer's, or "name#k/P" */
    int slot, slots;
    mr_filter filter;
    mr_handler *handler; /* shared by the slots */
    mr_policy policy;
    int64_t batch_size, batch_pause, batch_timeout;
    mr_place_state state;
    int64_t saved;    /* the checkpoint as the database has it */
    int64_t reached;  /* up to where events are handled: beyond `saved` only when detached */
    int64_t target;   /* where the batch in flight will bring it */
    mr_batch *draft;  /* what was gathered beyond it and not yet handed over */
    int64_t dirty_at; /* when an advance without events began to wait, 0 = none waits */
    /* Its controls, as of the last load. */
    int64_t epoch;
    int64_t *skips;
    size_t skip_count;
    mr_streams blocked; /* streams whose events wait behind a dead letter */
    bool by_key;        /* dead_letter_order: key */
    bool replay;        /* dead letters are to be replayed */
    /* Its trouble. */
    mr_trial trial;
    mr_sentence sentence; /* why the event that is to be given up is */
    int64_t first_failed; /* clock time of the trial's first failure */
    int troubles;         /* in a row, that were nobody's fault */
    mr_error *last_error;
    /* Detached: what the next save writes; handled events that it covers, and since when. */
    bool detached;
    mr_batch *save;
    int64_t unsaved, unsaved_at, checkpoint_every, checkpoint_age;
    int64_t rest_left; /* of a rest that a save came into, microseconds */
    /* What is with an executor is to come back between two events, or two letters of a replay. */
    atomic_bool recalled;
    bool owns_spec; /* it came while the worker ran; its spec goes with the last such place */
    bool owned;     /* assigned to this worker, or its lock is held, as far as is known */
    bool by_lock;   /* ownership: lock */
    bool removed;   /* goes once its batch is over */
    bool missing;   /* the last load did not find its checkpoint */
    bool reload;    /* checkpoint and controls must be read again before the next batch */
    bool unnoted;   /* its pause after failures is not written yet */
    int64_t noted_position;
    bool lagging; /* above lag_threshold at the last look */
    uv_timer_t timer;
} mr_place;

/* The worker's part in the fleet; control.c. */
typedef struct mr_control {
    char *register_sql, *tick_sql, *assign_sql, *bury_sql, *leave_sql, *listen_sql, *failure_sql;
    char leader_lock[24]; /* key of the leader's advisory lock */
    char channel[32];     /* where leaders tell that assignments changed */
    int registered;       /* 0 = no, 1 = without its session lock, 2 = fully */
    bool busy;            /* a flight is under way */
    bool grown;           /* consumers came or went since a registration was last sent */
    bool leader;
    bool calm;      /* the leader's picture has no consumers */
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
    char *load_sql, *published_sql, *notify_sql;
    mr_replay_sql replay_sql;
    mr_control fleet;
    mr_place **places;
    size_t place_count;
    mr_lane **lanes; /* queues; their number is fixed */
    size_t lane_count;
    int running; /* tasks with the executors */

    mr_life life;
    uv_loop_t loop;
    atomic_bool loop_made; /* read by calls from any thread */
    /* Stop, wake and finished batches come through it. A descriptor of our own, not the loop's: a
     * stop may come from a signal handler when the loop is long gone. */
    int signal_fd;
    uv_poll_t signal;
    uv_timer_t heartbeat, shutdown, lag, ring, house;
    char *ring_sql, *house_sql;
    json_t *ring_members; /* {queue: [worker, …]} as last seen */
    char *house_after;    /* where the sweep of keys goes on; NULL = at the beginning */
    bool lag_told;        /* a report is with the executors */
    mr_aconn *jobs;       /* the queues' connection, when there is no reader to share one with */
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
    int overdue;           /* how often the shutdown's timer has fired */
    bool settling;         /* finished tasks are being taken: a stop goes on afterwards */
    int errands;           /* consumers' tasks with the executors */
    _Atomic int64_t metrics[MR_METRIC_COUNT];
    mr_reader_counts read; /* the reader's own counters */
};

/* ---- startup.c: what happens once, on a connection of its own, before the loop ---- */
/* Everything that can be checked: server, schema, log, handlers. Fills in shape and handlers. With
 * `trial` set-up steps are tried and rolled back, else the handlers' own are run before. */
mr_error *mr__worker_prepare(mr_worker *worker, PGconn *conn, bool trial) MR_MUST_CHECK;
/* The handler of one consumer's places, checked against the server. */
mr_error *mr__worker_prepare_places(mr_worker *worker, PGconn *conn, mr_place **places,
                                    size_t count, bool trial) MR_MUST_CHECK;
mr_error *mr__worker_statements(mr_worker *worker) MR_MUST_CHECK;
/* A consumer's handler by its spec. Uses the worker's logger and, for sql_batch, its shape. */
mr_error *mr__worker_handler(mr_worker *worker, const mr_place *place,
                             mr_handler **out) MR_MUST_CHECK;

/* ---- enrol.c: set-up steps and checkpoints of consumers that are new ---- */
mr_error *mr__enrol_setup(mr_worker *worker, PGconn *conn, const mr_place *place,
                          bool trial) MR_MUST_CHECK;
/* Ends what mr__enrol_setup() began when it was only tried. */
mr_error *mr__enrol_setup_end(const mr_place *place, PGconn *conn, bool trial) MR_MUST_CHECK;
/* What mr__enrol_places() would refuse, without writing anything. */
mr_error *mr__enrol_check(mr_worker *worker, PGconn *conn) MR_MUST_CHECK;
/* Makes missing checkpoints at their start; lets consumers go on that were paused by failures. */
mr_error *mr__enrol_places(mr_worker *worker, PGconn *conn, mr_place **places,
                           size_t count) MR_MUST_CHECK;

/* ---- dispatch.c: consumers between windows and executors ---- */
void mr__dispatch_progress(mr_worker *worker); /* something new may be there for everybody */
void mr__dispatch_done(mr_worker *worker);     /* executors finished tasks */
void mr__dispatch_timer(uv_timer_t *timer);
void mr__dispatch_step(mr_place *place); /* looks for its next batch */
/* Detached consumers come back soon and save what they have done; for a stop. */
void mr__dispatch_flush(mr_worker *worker);
/* After consumers moved: what the reader must keep, and whether a `once` run is done. */
void mr__dispatch_settle(mr_worker *worker);
/* Nothing is held that a stop must wait for. */
bool mr__dispatch_quiet(const mr_worker *worker);
/* An empty batch of the consumer's that begins after `from`. */
mr_error *mr__place_make_batch(mr_place *place, int64_t from, mr_batch **out) MR_MUST_CHECK;
/* Hands the place's save to an executor. */
void mr__dispatch_save(mr_place *place);
/* The one place where a consumer's state changes. */
void mr__place_set_state(mr_place *place, mr_place_state state, const char *why);
void mr__place_drop_draft(mr_place *place); /* forgets what was gathered and not handed over */
void mr__place_rest(mr_place *place, int64_t micros, const char *why);
/* What comes after a batch: a rest, a look at its controls, or the next batch. */
void mr__place_go_on(mr_place *place, int64_t wait, const char *why);

/* ---- errand.c: what executors do for consumers ---- */
typedef enum mr_errand_kind { MR_ERRAND_BATCH, MR_ERRAND_DELIVER, MR_ERRAND_REPLAY } mr_errand_kind;
/* Hands it over; takes the batch (NULL for a replay). */
void mr__errand_send(mr_place *place, mr_errand_kind kind, mr_batch *batch);

/* ---- outcome.c: what came back ---- */
/* Sets `*taken` to NULL when it keeps it. */
void mr__outcome_batch(mr_place *place, mr_batch **taken);
void mr__outcome_delivered(mr_place *place, mr_batch *batch);
void mr__outcome_replayed(mr_place *place, mr_replay *replay);
/* Jitter: between half of it and all of it. */
int64_t mr__jitter(int64_t wait);
/* It stops until it is resumed; takes the error. */
void mr__place_pause(mr_place *place, mr_error *error, int64_t position);
/* When it was nobody's fault: a rest that doubles. */
void mr__place_trouble(mr_place *place, int64_t most, const char *why);

/* ---- loading.c: checkpoints and controls ---- */
void mr__loading_all(mr_worker *worker);  /* the reader is up: load everything, then follow */
void mr__loading_some(mr_worker *worker); /* read them again */
/* What a tick says: {consumer: epoch}. Those that changed are loaded again. */
void mr__loading_epochs(mr_worker *worker, const json_t *epochs);

/* ---- lag.c ---- */
void mr__lag_start(mr_worker *worker);

/* ---- ownership.c ---- */
/* Not ours any more; waits for its batch, if one runs, by being called again. */
void mr__place_let_go(mr_place *place);
/* What the tick says this worker owns: a JSON array of names, NULL for nothing. `got` names those
 * whose own lock it has from now on. */
void mr__dispatch_own(mr_worker *worker, const json_t *owned, const json_t *got);
/* Consumers with a lock of their own that this worker would take, and the locks' keys: two array
 * literals. */
void mr__locks_wanted(const mr_worker *worker, mr_buf *names, mr_buf *keys);
/* The session is gone, and with it the locks. */
void mr__dispatch_unlock(mr_worker *worker);
/* Takes places into the loop, or lets a consumer's go. */
void mr__dispatch_add(mr_worker *worker, mr_place *place);
void mr__dispatch_remove(mr_worker *worker, const char *name);

/* ---- control.c: the fleet ---- */
mr_error *mr__control_init(mr_worker *worker) MR_MUST_CHECK;
void mr__control_free(mr_worker *worker);
void mr__control_state(mr_worker *worker, bool up);
void mr__control_tell(mr_worker *worker); /* the next tick carries news */
void mr__control_look(mr_worker *worker); /* tick now */
/* Consumers came or went: the registration names others. */
void mr__control_roster(mr_worker *worker);
void mr__control_quiet(mr_worker *worker); /* a batch is over; a lost registration may go on */
/* Writes down that a consumer failed, and that it is paused for it. */
void mr__control_failure(mr_place *place, int64_t position);
/* Tells the fleet; false when it cannot be told. `for_good` removes the registration. */
bool mr__control_leave(mr_worker *worker, bool for_good, mr_flight_fn callback);

/* ---- places.c: consumers as they run ---- */
/* The places of a spec, one a slot, not yet in the loop; `*count` of them, in an array that is the
 * caller's. They borrow the spec. */
mr_error *mr__places_new(mr_worker *worker, const mr_consumer *spec, mr_place ***out,
                         size_t *count) MR_MUST_CHECK;
void mr__place_free(mr_place *place); /* its timer must be closed */
void mr__place_apply_changes(mr_worker *worker);
/* The consumer's name without its slot. */
const char *mr__place_base(const mr_place *place);
/* The names of all places as a text[] literal, or of those of one kind of ownership; NULL when
 * memory is short. free(). */
typedef enum mr_which {
    MR_WHICH_ALL,
    MR_WHICH_ASSIGNED,
    MR_WHICH_LOCKED,
    MR_WHICH_BY_KEY
} mr_which;
char *mr__worker_names(const mr_worker *worker, mr_which which);

/* ---- loop.c: the connections, the reader and the executors ---- */
mr_error *mr__worker_make_loop(mr_worker *worker) MR_MUST_CHECK;
mr_conn_params mr__worker_conn(const mr_worker *worker);
/* Where claims, outcomes and heartbeats of jobs go. */
mr_aconn *mr__worker_jobs_conn(const mr_worker *worker);

/* ---- worker.c ---- */
/* Wakes the loop. Any thread, and signal handlers. */
void mr__worker_signal(mr_worker *worker);
/* Ends the run with an error (taken); the first one counts. */
void mr__worker_fail(mr_worker *worker, mr_error *error);
void mr__worker_stop_begin(mr_worker *worker, const char *why);
void mr__worker_force(mr_worker *worker);       /* a stop that was asked for twice */
void mr__worker_settle_stop(mr_worker *worker); /* goes on with a stop once batches are done */
static inline void mr__count(mr_worker *worker, mr_metric metric, int64_t n)
{
    atomic_fetch_add_explicit(&worker->metrics[metric], n, memory_order_relaxed);
}

#endif
