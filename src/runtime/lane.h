/* A queue as it runs in this process: claims ahead, keeps its handlers busy, writes outcomes in
 * batches, stamps heartbeats, resets what others left behind. Loop thread only, but for what its
 * handlers share under the lock. */
#ifndef MR_RUNTIME_LANE_H
#define MR_RUNTIME_LANE_H

#include "pg/aconn.h"
#include "queue/job.h"
#include "queue/wake.h"
#include "runtime/executor.h"

#include <jansson.h>
#include <uv.h>

typedef struct mr_lane mr_lane;

/* One claimed job. WAITING: claimed, not begun. RUNNING: with a handler. DONE: its outcome is to be
 * written. WRITING: it is being written. */
typedef enum mr_lane_state {
    MR_LANE_WAITING,
    MR_LANE_RUNNING,
    MR_LANE_DONE,
    MR_LANE_WRITING,
} mr_lane_state;

/* A claim of the built-in table whose row may still be there. */
typedef struct mr_lane_claim {
    int64_t fence;
    size_t open;   /* its jobs in the list of all */
    bool kept;     /* one of its jobs is left to the resetter: its row too, then */
    unsigned told; /* mr_claims_told: which statements under way say that it is over */
    struct mr_lane_claim *next;
} mr_lane_claim;

typedef enum mr_claims_told { MR_TOLD_BY_CLAIM = 1, MR_TOLD_BY_RESET = 2 } mr_claims_told;

typedef struct mr_lane_job {
    mr_job job;
    mr_lane_claim *claim;         /* NULL: not of the built-in table */
    _Atomic(mr_lane_state) state; /* RUNNING is set by a handler's thread, the rest by the loop */
    _Atomic int64_t started;      /* clock microseconds; 0 = not yet */
    int64_t ended;                /* set by the handler's thread before it hands back */
    int64_t lost_since;           /* when a heartbeat first did not find it ours; 0 = it is */
    bool told_lost;
    bool disowned; /* its handler hangs, and its outcome is written without it */
    bool again;    /* its outcome was sent before, and nobody knows what came of it */
    bool locked;   /* its row was in somebody's hands: nobody waits for it any more */
    struct mr_lane_job *next, *previous; /* in the list of all; the loop's */
    struct mr_lane_job *line;            /* in the line of those that wait or are done */
} mr_lane_job;

typedef struct mr_lane_line {
    mr_lane_job *first, *last;
    size_t count;
} mr_lane_line;

/* FRESH: not asked about yet. OWED: a producer of the key had not committed when it was asked. */
typedef struct mr_lane_keys {
    char **fresh, **owed, **asked; /* asked: the call under way */
    size_t fresh_count, owed_count, asked_count;
    int64_t wait; /* microseconds until the owed ones are asked about again */
} mr_lane_keys;

struct mr_lane {
    mr_worker *worker;
    const mr_queue *spec; /* the conf's */
    const char *name;     /* the spec's */
    mr_queue_store *store;
    mr_job_handler *handler;
    mr_job_hooks hooks;
    mr_mark mark;
    _Atomic(char *) identity; /* as in worker_hostname; executors read it in mode: transaction */
    char **former;            /* those it had before: jobs that run may still name them */
    size_t former_count;
    char reset_lock[24];
    int64_t num_handlers, look_ahead, interval, heartbeat, max_runtime, max_total, max_active,
        reset_interval;
    /* Of the built-in table. */
    bool builtin, transaction;
    int64_t pace;       /* microseconds that a job takes, about; 0 = not known */
    bool eager;         /* mode: transaction: batches come back full */
    bool idle;          /* … the last look found nothing */
    int64_t batch_size; /* mode: transaction */
    bool checked;      /* so is this: a commit was refused once, so each job is checked before it */
    char *buckets;     /* those whose keys are this worker's; NULL = all are alike */
    mr_lane_keys keys; /* keys whose next job may come into line */
    mr_reset_care care;
    int64_t care_whole; /* when the resetter last looked at all claims, however old */
    /* Shared with the handlers' threads; with mode: transaction the mark and the buckets too. */
    pthread_mutex_t lock;
    mr_lane_line waiting, done;
    int handlers; /* tasks with the executors */
    /* The loop's own. */
    mr_lane_job *all;
    mr_lane_claim *claims;
    int64_t highest;        /* fence of a claim that was heard of */
    size_t claimed;         /* in the list of all */
    size_t active;          /* of those, waiting or running as far as the loop knows */
    mr_lane_line unwritten; /* outcomes to be written */
    mr_lane_job **writing;  /* the batch under way */
    mr_outcome *outcomes;   /* and what it says */
    size_t writing_count;
    mr_beat *beats; /* the heartbeat under way, and the ids it names */
    mr_lane_job **beating;
    size_t beat_count;
    struct mr_dequeue *ask; /* the hook's answer, while a claim is being prepared */
    mr_queue_call claim;    /* under way */
    mr_scan scan;
    int wanted;
    int64_t claim_sent, began, total;
    bool asking, claiming, resetting;
    size_t write_most; /* outcomes of one statement; less while one of them is refused */
    bool free_only;    /* the next outcomes leave locked rows alone */
    bool empty;        /* the last look at everything found nothing */
    bool resetter;     /* this session holds the resetter's lock just now */
    int troubles;      /* claims in a row that failed */
    int sick;          /* jobs in a row that were given back because the handler could not run */
    int64_t rest_until;
    int64_t woken; /* until then it looks every MR_LANE_AGAIN: somebody said that there are jobs */
    bool called;   /* somebody said so while a look was under way, or just after one */
    mr_error *last_error; /* of either */
    bool telling;         /* progress is on its way */
    uv_timer_t look, beat, reset, later, promote, progress;
};

enum {
    MR_LANE_SICK = 5,         /* so many in a row: it is told as a problem */
    MR_LANE_WRITE_MOST = 500, /* outcomes of one statement */
    /* Microseconds from a wake-up to the last look for it: beyond MR_WAKE_EVERY, within which its
     * sender leaves further ones out. */
    MR_LANE_AGAIN = MR_WAKE_EVERY + 10000,
};

/* What the pre-dequeue hook is asked, and what it answered. */
struct mr_dequeue {
    mr_task task;
    mr_lane *lane;
    int count;
    bool refused;
    mr_condition *conditions;
    size_t condition_count;
    mr_error *error;
};

/* ---- lane.c ---- */
mr_error *mr__lane_new(mr_worker *worker, const mr_queue *spec, mr_lane **out) MR_MUST_CHECK;
void mr__lane_free(mr_lane *lane); /* its timers must be closed */
/* The mapping and the handler, against the server. */
mr_error *mr__lane_prepare(mr_lane *lane, PGconn *conn) MR_MUST_CHECK;
/* What producers and other workers must know of it; writes. */
mr_error *mr__lanes_enrol(mr_worker *worker, PGconn *conn) MR_MUST_CHECK;
void mr__lanes_start(mr_worker *worker);
/* The worker has a registration, perhaps under another id than before: built-in queues may claim.
 */
void mr__lanes_registered(mr_worker *worker);
/* The connection came or went. */
void mr__lanes_state(mr_worker *worker, bool up);
/* Gives back what has not begun; what runs goes on. */
void mr__lanes_stop(mr_worker *worker);
/* What runs must give up now. */
void mr__lanes_cancel(mr_worker *worker);
/* Somebody says that this queue has jobs. From outside: any name, as often as they like. */
void mr__lanes_wake(mr_worker *worker, const char *name);
bool mr__lanes_quiet(const mr_worker *worker); /* nothing is held that a stop must wait for */
/* Every queue is empty (for `once`), or has done what it may do. */
bool mr__lanes_drained(const mr_worker *worker);
bool mr__lanes_spent(const mr_worker *worker); /* each has done what it may do, and is idle */
/* What a heartbeat tells of them. */
json_t *mr__lanes_info(const mr_worker *worker);
/* The queues' names as a text[] literal; NULL when memory is short. free(). */
char *mr__lanes_names(const mr_worker *worker);
void mr__lanes_close(mr_worker *worker);
/* Handlers finished jobs. */
void mr__lanes_done(mr_worker *worker);

/* It has no job in hand, asks for none, and no key is owed. */
bool mr__lane_resting(const mr_lane *lane);

/* ---- lane_progress.c ---- */
void mr__lane_progress_start(mr_lane *lane);

/* ---- lane_claim.c ---- */
void mr__lane_look(mr_lane *lane); /* claims when there is room */
void mr__lane_look_in(mr_lane *lane, int64_t micros);
/* True when it will claim nothing more. */
bool mr__lane_over(const mr_lane *lane);

/* ---- lane_jobs.c ---- */
/* Takes claimed rows over; nothing begins yet. */
void mr__lane_take(mr_lane *lane, mr_jobs *jobs);
/* Lets handlers begin what waits. */
void mr__lane_feed(mr_lane *lane);
void mr__lane_collect(mr_lane *lane); /* takes what handlers have finished */
void mr__lane_release(mr_lane *lane); /* what waits is given back */
void mr__lane_forget(mr_lane *lane, mr_lane_job *job);
/* Nothing more can be done for it here: it runs, as far as others know, until its lease is over. */
void mr__lane_abandon(mr_lane *lane, mr_lane_job *job);
/* A job of the claim, ready to be run; mr__job_clear(). Any thread. */
void mr__lane_job_init(mr_lane *lane, mr_jobs *jobs, size_t index, mr_job *out);
/* Its program cannot be run, so often in a row: with `once` nobody would hear of it otherwise. */
void mr__lane_despair(mr_lane *lane, int in_a_row, const mr_error *error);
/* Its outcome, which is written; `became` "" = unknown. */
void mr__lane_count(mr_lane *lane, const mr_job *job, const char *became);
/* Its handler did not give up when max_runtime had passed: the outcome is written for it. */
void mr__lane_disown(mr_lane *lane, mr_lane_job *job);
void mr__lane_line_add(mr_lane_line *line, mr_lane_job *job);
mr_lane_job *mr__lane_line_take(mr_lane_line *line);

/* The job's outcome is to be written. */
void mr__lane_put_back(mr_lane *lane, mr_lane_job *job);
/* It changed nothing: somebody else has it, or finished it, or deleted it. */
void mr__lane_late(mr_lane *lane, mr_lane_job *job);

/* ---- lane_claims.c ---- */
/* The claim of one more job that was got under `fence`; NULL when memory is short. */
mr_lane_claim *mr__lane_claim_open(mr_lane *lane, int64_t fence);
/* Writes which claims are over, and which there are (unless NULL), as bigint[]. */
void mr__lane_claims_put(mr_lane *lane, mr_claims_told by, mr_buf *over, mr_buf *known);
/* The statement that said so is over: what it told is done, or it failed. */
void mr__lane_claims_told(mr_lane *lane, mr_claims_told by, bool done);
/* Every claim of this lane's below that fence was heard of, or its answer is lost. */
int64_t mr__lane_claims_below(const mr_lane *lane);
void mr__lane_claims_free(mr_lane *lane);

/* ---- lane_write.c ---- */
void mr__lane_write(mr_lane *lane); /* outcomes to the database */
/* The same once it is worth it. */
void mr__lane_write_soon(mr_lane *lane);

/* ---- lane_keys.c: the built-in table's jobs that stand behind each other ---- */
/* A job of the key is over, and that is committed. */
void mr__lane_key(mr_lane *lane, const char *key);
/* The same of a job, if what became of it lets its key go. `became` "" = unknown. */
void mr__lane_key_of(mr_lane *lane, const mr_job *job, const char *became);
void mr__lane_promote(mr_lane *lane); /* asks about what is fresh */
void mr__lane_keys_free(mr_lane *lane);

/* ---- lane_tx.c: mode: transaction ---- */
void mr__lane_tx_feed(mr_lane *lane); /* lets tasks take jobs */

/* ---- lane_ring.c ---- */
void mr__ring_start(mr_worker *worker);
void mr__ring_look(mr_worker *worker); /* who shares the queues, now */

/* ---- house.c ---- */
void mr__house_start(mr_worker *worker);
void mr__house_soon(mr_worker *worker); /* somebody may have left keys behind */

/* ---- lane_care.c ---- */
void mr__lane_care_start(mr_lane *lane);
/* Counts and logs that a job is another's, once for each. */
void mr__lane_tell_lost(mr_lane *lane, mr_lane_job *job);

#endif
