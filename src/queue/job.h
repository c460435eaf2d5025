/* A claimed row while it is handled: what the handler sees of it, its transaction, its outcome.
 * Made on the loop thread, run on an executor's, handed back. */
#ifndef MR_QUEUE_JOB_H
#define MR_QUEUE_JOB_H

#include "base/log.h"
#include "queue/store.h"

/* Gives the thread's session, opened when there is none. */
typedef mr_error *(*mr_job_session_fn)(void *user, mr_session **session);

typedef struct mr_job_handler mr_job_handler;
/* What runs for a job; for several at the same time. */
struct mr_job_handler {
    /* On an executor's thread. Its error is the job's; see mr_job_fn. With `blameless` set, it is
     * nobody's. */
    mr_error *(*handle)(mr_job_handler *handler, mr_job *job);
    /* Asks the server whether the handler's text makes sense, and whatever else can be checked.
     * NULL = nothing. */
    mr_error *(*check)(mr_job_handler *handler, PGconn *conn);
    void (*free)(mr_job_handler *handler);
};

mr_error *mr__job_handler_callback(mr_job_fn function, void *user,
                                   mr_job_handler **out) MR_MUST_CHECK;
/* A statement with the values of the store as :name; runs in the job's transaction. The store must
 * outlive it. */
mr_error *mr__job_handler_sql(const char *text, const mr_queue_store *store,
                              mr_job_handler **out) MR_MUST_CHECK;
/* `command` is a list in its one-string form (base/list.h). */
mr_error *mr__job_handler_exec(const char *queue, const char *command, mr_logger *logger,
                               mr_job_handler **out) MR_MUST_CHECK;
mr_error *mr__job_handler_plugin(const char *queue, const char *path, const char *config,
                                 mr_job_handler **out) MR_MUST_CHECK;
void mr__job_handler_free(mr_job_handler *handler);

/* Why a job should give up; the first one counts. Set by the loop, read by any thread. */
typedef enum mr_job_stop {
    MR_STOP_NONE,
    MR_STOP_CANCEL,  /* somebody asked for it */
    MR_STOP_LOST,    /* it belongs to another worker now */
    MR_STOP_RUNTIME, /* max_runtime has passed */
    MR_STOP_WORKER,  /* the worker stops at once */
} mr_job_stop;

typedef struct mr_job_hooks {
    mr_job_fn before;
    mr_job_after_fn after;
    void *user;
} mr_job_hooks;

/* Something for the execution log that waits for the job's transaction to end. */
typedef struct mr_job_note {
    int index; /* the entry it replaces; 0 = one more */
    char *entry;
} mr_job_note;

/* What a handler said last of how far it is. */
typedef struct mr_job_word {
    int percent;
    bool has_text;
    char text[];
} mr_job_word;
typedef struct mr_job_watch mr_job_watch;

/* What the public handle is. */
struct mr_job {
    /* What it is; borrowed but for `jobs`, which is referenced. */
    const mr_queue_store *store;
    const char *worker; /* as in worker_hostname */
    mr_jobs *jobs;
    mr_job_row row;
    mr_job_handler *handler;
    mr_job_hooks hooks;
    mr_logger *logger;
    const mr_clock *clock;
    int64_t max_runtime; /* microseconds; -1 = none */
    /* While it runs. */
    atomic_int stop;             /* mr_job_stop */
    atomic_bool committing;      /* its transaction ends with the outcome, perhaps by now */
    int64_t began;               /* clock microseconds; set when it begins */
    int64_t deadline;            /* by max_runtime; INT64_MAX = none */
    _Atomic(mr_job_word *) word; /* not written yet; any thread's */
    mr_job_watch *watch;         /* who is to hear that it should give up */
    mr_job_session_fn open;
    void *open_user;
    mr_tx *tx; /* NULL until the handler asked for it */
    /* mode: transaction. The one that took it and will finish it, with others; its place among
     * them, which is also the tag of its statements. */
    mr_tx *shared;
    int place;
    bool used;    /* it has a mark in the shared transaction */
    bool checked; /* constraints that are put off to the commit are checked with each job */
    bool ran;
    bool requeue, snooze;
    int64_t delay;  /* microseconds */
    bool blameless; /* the handler's error has nothing to do with the job: no child starts, say */
    mr_session *session; /* what `open` gave last */
    bool cut_off;        /* the session could not be opened, or was lost */
    bool decided;        /* the outcome is */
    mr_job_note *notes;
    size_t note_count;
    int log_length; /* entries of the execution log that this claim knows of, notes included */
    /* What came of it. `written`: the outcome is in the database already, with the effects.
     * outcome.id NULL: there is nothing to write, the job is another's now. */
    mr_outcome outcome;
    char *message; /* what outcome.message points to */
    bool written;
    /* Nobody's fault: the connection was lost, the handler's program cannot be started. The outcome
     * is RELEASE then (and it may come too late, when the connection was lost in the commit): try
     * again after a wait. With code MR_E_FATAL a handler says that the process must stop. */
    mr_error *trouble;
};

/* Everything from the hooks to the outcome. With a transaction, the outcome commits in it; else it
 * is for the caller to write. A job that was told to stop before it began is not handled at all,
 * and no hook is called. */
void mr__job_run(mr_job *job, mr_job_session_fn open, void *user);
/* mode: transaction. Runs jobs that `tx` has taken, one after the other, each behind a mark of its
 * own once it writes: what one of them did wrong is undone by itself, and those after it whose
 * statements went with it are run again. Sets the outcomes; the caller queues them and commits. The
 * error is nobody's: the transaction cannot go on. */
mr_error *mr__jobs_run_shared(mr_tx *tx, mr_job *jobs, size_t count, mr_job_session_fn open,
                              void *user) MR_MUST_CHECK;
/* Frees what it holds, not itself. */
void mr__job_clear(mr_job *job);
/* The text for a job that ran too long. */
void mr__job_overrun(const mr_job *job, mr_buf *out);

/* ---- Between the files of a job ------------------------------------------------------------ */

bool mr__job_late(const mr_job *job);                /* max_runtime has passed */
void mr__job_begin(mr_job *job);                     /* from here on its time runs */
mr_error *mr__job_handle(mr_job *job) MR_MUST_CHECK; /* the hook before it, and the handler */
/* What the handler said last of its progress, the caller's: free(). NULL = nothing new. */
mr_job_word *mr__job_word_take(mr_job *job);
/* Nobody is told to give up any more. */
void mr__job_watch_end(mr_job *job);
/* It belongs to another worker; the first reason counts. */
void mr__job_lost(mr_job *job);
/* Makes job->session usable. */
mr_error *mr__job_session(mr_job *job) MR_MUST_CHECK;
/* Notes that the session failed when that is what the error says; returns it. */
mr_error *mr__job_noted(mr_job *job, mr_error *error) MR_MUST_CHECK;
/* mode: transaction: the server ends its statements after max_runtime. Queued. */
mr_error *mr__job_limit(mr_job *job) MR_MUST_CHECK;
/* Takes what the handler returned, ends the transaction, sets the outcome. Returns the job's error
 * as it is in the end, the caller's. */
mr_error *mr__job_decide(mr_job *job, mr_error *error) MR_MUST_CHECK;
/* The same for a job that shares its transaction: what became of it so far. Takes the error; `own`:
 * it is the handler's, no statement failed. */
void mr__job_judge(mr_job *job, mr_error *error, bool own);
/* Queues the notes in the transaction that carries the outcome. */
mr_error *mr__job_notes_queue(mr_job *job, mr_tx *tx) MR_MUST_CHECK;
/* Writes the notes in a transaction of their own; what cannot be written is logged. */
void mr__job_notes_write(mr_job *job);
void mr__job_notes_drop(mr_job *job);

#endif
