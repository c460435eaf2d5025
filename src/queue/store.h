/* A queue over a connection: claim, outcomes, heartbeats, resets, log entries, counts. No loop, no
 * thread of its own.
 *
 * A store is immutable once open and may be used by any number of threads, each with its own
 * connection. Each function sends one statement. Those that a loop needs are in two halves, a call
 * (SQL and values) and the reading of its result, and the blocking form is made of the two. */
#ifndef MR_QUEUE_STORE_H
#define MR_QUEUE_STORE_H

#include "pg/session.h"
#include "queue/statements.h"

typedef struct mr_queue_store mr_queue_store;

/* Checks the mapping and writes the statements. `mapping` is taken over on success. */
mr_error *mr__queue_open(PGconn *conn, mr_mapping *mapping, const mr_queue_policy *policy,
                         const mr_names *names, mr_queue_store **out) MR_MUST_CHECK;
void mr__queue_close(mr_queue_store *store);
const char *mr__queue_name(const mr_queue_store *store);
const mr_queue_shape *mr__queue_shape(const mr_queue_store *store);
/* What a handler gets of each job, in the order of its claim's values. */
size_t mr__queue_value_count(const mr_queue_store *store);
const char *mr__queue_value_name(const mr_queue_store *store, size_t index);
const char *mr__queue_text(const mr_queue_store *store, mr_queue_statement statement);
/* A mark that fits the store's order. */
void mr__queue_mark_init(const mr_queue_store *store, int64_t interval, mr_mark *mark);

/* Where a statement runs: one of the two. In a transaction it is part of it. */
typedef struct mr_queue_on {
    PGconn *conn;
    mr_tx *tx;
} mr_queue_on;

/* ---- Calls ----------------------------------------------------------------------------------- */

enum { MR_QUEUE_PARAMS = 12 };

/* A statement with its values, to be sent by whoever has a connection. */
typedef struct mr_queue_call {
    const char *sql;
    int count;
    const char *values[MR_QUEUE_PARAMS];
    mr_buf text[MR_QUEUE_PARAMS]; /* what the values point into */
    char *own_sql;                /* NULL when the store's text does */
} mr_queue_call;

void mr__queue_call_free(mr_queue_call *call);
#define MR_AUTO_CALL __attribute__((cleanup(mr__queue_call_free))) mr_queue_call
/* Sends it and waits for its rows, which are the caller's: PQclear(). */
mr_error *mr__queue_run(mr_queue_on on, const mr_queue_call *call, PGresult **rows) MR_MUST_CHECK;

/* ---- Claim ----------------------------------------------------------------------------------- */

/* Claimed rows, in order. Counted references: jobs of one claim run on several threads. */
typedef struct mr_jobs mr_jobs;

typedef struct mr_claim {
    int count; /* at most so many */
    const char
        *worker; /* goes into worker_hostname; without lease_generation it is half the fence */
    const mr_condition *conditions; /* all must hold; none for the built-in table */
    size_t condition_count;
    /* Of the built-in table alone. */
    const char *buckets; /* an int[] of those whose keys are preferred; NULL = all are alike */
    const char *spent;   /* a bigint[] of fences of claims that are over; NULL = none */
    bool take;           /* in a transaction: the rows are only locked */
} mr_claim;

/* `mark` may be NULL: then every look is from the beginning. Never waits for a locked row. */
mr_error *mr__queue_claim(mr_queue_on on, const mr_queue_store *store, const mr_claim *claim,
                          mr_mark *mark, const mr_clock *clock, mr_jobs **out) MR_MUST_CHECK;
mr_error *mr__queue_claim_call(const mr_queue_store *store, const mr_claim *claim,
                               const mr_mark *mark, mr_scan scan, mr_queue_call *out) MR_MUST_CHECK;
/* Takes `rows`. `now` and `took` are for the mark (may be NULL). */
mr_error *mr__queue_claim_take(const mr_queue_store *store, PGresult *rows, mr_mark *mark,
                               mr_mark_news news, mr_jobs **out) MR_MUST_CHECK;

mr_jobs *mr__jobs_ref(mr_jobs *jobs);
void mr__jobs_unref(mr_jobs *jobs);
size_t mr__jobs_count(const mr_jobs *jobs);

/* One row. Strings live as long as the claim it came from. */
typedef struct mr_job_row {
    const mr_jobs *jobs;
    int row;
    const char *id;
    int64_t fence; /* names this claim among all of the row's */
} mr_job_row;

mr_job_row mr__jobs_at(const mr_jobs *jobs, size_t index);
size_t mr__jobs_values(const mr_jobs *jobs); /* values of each job */
const char *mr__jobs_value_name(const mr_jobs *jobs, size_t index);
const char *mr__job_value_at(const mr_job_row *job, size_t index); /* NULL = SQL NULL */
Oid mr__jobs_value_type(const mr_jobs *jobs, size_t index);
/* Index of a value by name, or -1. */
int mr__jobs_value_find(const mr_jobs *jobs, const char *name);

/* ---- Outcomes -------------------------------------------------------------------------------- */

typedef enum mr_outcome_kind {
    MR_OUTCOME_COMPLETE,
    MR_OUTCOME_ERROR,   /* errored, or failed when retries are used up; counts a failure */
    MR_OUTCOME_FAIL,    /* failed; counts a failure */
    MR_OUTCOME_CANCEL,  /* canceled */
    MR_OUTCOME_REQUEUE, /* queued anew, at a time: as if it had just come; a cancel request goes */
    MR_OUTCOME_SNOOZE,  /* queued, at a time; keeps its age */
    MR_OUTCOME_RELEASE  /* queued as it was before the claim */
} mr_outcome_kind;

/* ERROR, FAIL, SNOOZE and RELEASE make the job canceled when that was asked for. */
typedef struct mr_outcome {
    const char *id;
    int64_t fence;
    mr_outcome_kind kind;
    const char *message; /* ERROR, FAIL, CANCEL; may be NULL */
    const char *at;      /* REQUEUE, SNOOZE: a timestamptz; NULL = `delay` from now */
    int64_t delay;       /* microseconds on the server's clock */
    /* Out: "" when it changed nothing, else the state the job is in now. Nothing was changed
     * because it came too late, or because a session has locked the row: then it is to be tried
     * again. */
    char became[16];
    bool locked;
} mr_outcome;

/* Writes many at once. `*late` (may be NULL) counts those that came too late. With a `mark`, what
 * was put back is looked for again. Waits for a row that a session has locked as long as the
 * connection's lock_timeout allows; then those that are free are written and the others told as
 * locked, so that one row in somebody's hands does not hold up the rest. */
mr_error *mr__queue_finish(mr_queue_on on, const mr_queue_store *store, const char *worker,
                           mr_outcome *outcomes, size_t count, mr_mark *mark,
                           size_t *late) MR_MUST_CHECK;
/* `free_only` leaves locked rows alone instead of waiting for them. */
mr_error *mr__queue_finish_call(const mr_queue_store *store, const char *worker,
                                const mr_outcome *outcomes, size_t count, bool free_only,
                                mr_queue_call *out) MR_MUST_CHECK;
mr_error *mr__queue_finish_take(const PGresult *rows, mr_outcome *outcomes, size_t count,
                                mr_mark *mark, size_t *late) MR_MUST_CHECK;
/* Queues outcomes in a handler's own transaction: effects and outcomes commit together, or the
 * transaction fails with MR_E_FENCED when one came too late. Costs no round trip; `became` stays.
 */
mr_error *mr__queue_finish_with(mr_tx *tx, const mr_queue_store *store, const char *worker,
                                const mr_outcome *outcomes, size_t count) MR_MUST_CHECK;

/* Queues, in the transaction that took them, what became of jobs of the built-in table. */
mr_error *mr__queue_finish_taken(mr_tx *tx, const mr_queue_store *store, const char *worker,
                                 const mr_outcome *outcomes, size_t count) MR_MUST_CHECK;

/* ---- Heartbeats ------------------------------------------------------------------------------ */

typedef enum mr_beat_state {
    MR_BEAT_LOST,  /* reset, claimed by another, finished or deleted: its handler is to stop */
    MR_BEAT_OURS,  /* stamped */
    MR_BEAT_LOCKED /* ours when it was looked at, but locked by a session; nothing resets it */
} mr_beat_state;

typedef struct mr_beat {
    const char *id;
    int64_t fence;
    mr_beat_state state; /* out */
    bool cancel;         /* out: somebody asked for it to be canceled */
} mr_beat;

/* On failure `beats` are untouched: nothing is known, so nothing is lost. Never waits for a row. */
mr_error *mr__queue_heartbeat(mr_queue_on on, const mr_queue_store *store, const char *worker,
                              mr_beat *beats, size_t count) MR_MUST_CHECK;
mr_error *mr__queue_heartbeat_call(const mr_queue_store *store, const char *worker,
                                   const mr_beat *beats, size_t count,
                                   mr_queue_call *out) MR_MUST_CHECK;
mr_error *mr__queue_heartbeat_take(const PGresult *rows, mr_beat *beats,
                                   size_t count) MR_MUST_CHECK;

/* ---- The resetter ---------------------------------------------------------------------------- */

typedef struct mr_reset {
    const char *id;
    const char *state; /* queued = reset; failed = too often; canceled = was asked for; built-in:
                          released = of a claim of its own that the worker had not heard of */
    int64_t age;       /* of its last heartbeat, microseconds */
    const char *key;   /* built-in: of a job that is in order with others; else NULL */
} mr_reset;

/* Where the resetter of the built-in table goes on: what it learned at its last look. */
typedef struct mr_reset_care {
    char *lowest;    /* fence; NULL = none yet */
    char *missing;   /* workers, a text[]; NULL = none */
    int64_t ceiling; /* the highest fence there was */
} mr_reset_care;

/* What a worker says of its own claims of the built-in table; see sql/functions/tend_claims.sql. */
typedef struct mr_own_claims {
    const char *worker;
    const char *known, *spent; /* bigint[] */
    int64_t below;
} mr_own_claims;

void mr__reset_care_clear(mr_reset_care *care);

typedef struct mr_resets {
    mr_reset *rows;
    size_t count;
    bool more; /* the batch was full: there may be others */
    PGresult *result;
} mr_resets;

mr_error *mr__queue_reset(mr_queue_on on, const mr_queue_store *store, mr_mark *mark,
                          mr_resets *out) MR_MUST_CHECK;
mr_error *mr__queue_reset_call(const mr_queue_store *store, const mr_reset_care *care,
                               const mr_own_claims *own, mr_queue_call *out) MR_MUST_CHECK;
/* Takes `rows`. */
mr_error *mr__queue_reset_take(const mr_queue_store *store, PGresult *rows, mr_mark *mark,
                               mr_reset_care *care, mr_resets *out) MR_MUST_CHECK;
void mr__resets_free(mr_resets *resets);

/* ---- Execution log --------------------------------------------------------------------------- */

/* Whose log: of a claim, or of a row whoever runs it (`fence` NULL). */
typedef struct mr_log_target {
    const char *id;
    const int64_t *fence;
    const char *worker;
} mr_log_target;

/* Appends an entry, JSON text; `*index` (may be NULL) is its place, from 1. */
mr_error *mr__queue_log_add(mr_queue_on on, const mr_queue_store *store,
                            const mr_log_target *target, const char *entry,
                            int *index) MR_MUST_CHECK;
/* Replaces the entry at `index`. */
mr_error *mr__queue_log_set(mr_queue_on on, const mr_queue_store *store,
                            const mr_log_target *target, int index,
                            const char *entry) MR_MUST_CHECK;
/* Queues either in a transaction, at the cost of no round trip: appends when `index` is 0. Nobody
 * hears when it changed nothing. */
mr_error *mr__queue_log_with(mr_tx *tx, const mr_queue_store *store, const mr_log_target *target,
                             int index, const char *entry) MR_MUST_CHECK;

/* ---- Counts ---------------------------------------------------------------------------------- */

/* Sets of states; an empty one is an error. */
enum {
    MR_IN_QUEUED = 1,
    MR_IN_ERRORED = 2,
    MR_IN_PROCESSING = 4,
    MR_IN_COMPLETED = 8,
    MR_IN_FAILED = 16,
    MR_IN_CANCELED = 32
};

mr_error *mr__queue_count(mr_queue_on on, const mr_queue_store *store, unsigned states,
                          int64_t *count) MR_MUST_CHECK;
mr_error *mr__queue_exists(mr_queue_on on, const mr_queue_store *store, unsigned states,
                           bool *exists) MR_MUST_CHECK;
/* How long the oldest job that could be claimed now has been waiting, in microseconds; 0 = none. */
mr_error *mr__queue_wait(mr_queue_on on, const mr_queue_store *store, int64_t *wait) MR_MUST_CHECK;

/* ---- Between the store's files --------------------------------------------------------------- */

struct mr_queue_store {
    mr_mapping mapping;
    mr_queue_policy policy;
    char *reset_message;
    mr_names names;
    mr_queue_shape shape;
    mr_queue_sql sql;
};

/* Appends one element of an array literal: `first` opens it, NULL is SQL NULL. Bytes that are no
 * text for the server become '?'. */
void mr__array_add(mr_buf *array, bool first, const char *element);
void mr__array_add_number(mr_buf *array, bool first, int64_t number);
/* Closes each of the call's arrays from `first` on and points its values at them. */
mr_error *mr__queue_call_arrays(mr_queue_call *call, int first, int last) MR_MUST_CHECK;

#endif
