/* A queue from its operator's side: which jobs are meant, looking at them, putting them back or
 * calling them off. Blocking, on the caller's connection, one statement a call.
 *
 * What is changed is fenced by the state that was seen, under a row lock that is never waited for;
 * every job that was meant is told with what became of it, or why nothing did. */
#ifndef MR_QUEUE_OPERATE_H
#define MR_QUEUE_OPERATE_H

#include "queue/store.h"

/* What the public handle is. */
struct mr_job_filter {
    char **ids;
    size_t id_count;
    unsigned states; /* MR_IN_…; 0 does not restrict */
    char *error, *before, *after;
    char *key;     /* of the built-in table alone */
    bool open;     /* the same: not what is in its archive */
    int64_t limit; /* 0 = the call's own */
};

/* A NULL filter is an empty one. */
bool mr__job_filter_empty(const mr_job_filter *filter);
const char *mr__job_state_name(unsigned bit); /* of one MR_IN_… */

/* See mr_queue_jobs() and mr_queue_job() in the public header. */
mr_error *mr__jobs_list(PGconn *conn, const mr_queue_store *store, const mr_job_filter *filter,
                        PGresult **rows) MR_MUST_CHECK;
mr_error *mr__jobs_show(PGconn *conn, const mr_queue_store *store, const char *id,
                        PGresult **rows) MR_MUST_CHECK;

typedef enum mr_job_action {
    MR_JOB_RETRY,
    MR_JOB_CALL_OFF,
    MR_JOB_REQUEUE,
    MR_JOB_DROP
} mr_job_action;

typedef struct mr_job_order {
    mr_job_action action;
    const mr_job_filter *filter;
    bool all;            /* an empty filter is meant */
    bool reset_counters; /* RETRY, REQUEUE */
    const char *actor;   /* built-in: for the audit; NULL = unknown */
    const char *reason;  /* CALL_OFF, and built-in: for the audit; NULL = none */
    const char *at;      /* REQUEUE: a timestamptz; NULL = `delay` from now */
    int64_t delay;       /* microseconds; 0 = at once */
} mr_job_order;

mr_error *mr__jobs_operate(PGconn *conn, const mr_queue_store *store, const mr_job_order *order,
                           PGresult **rows) MR_MUST_CHECK;

/* ---- summary.c ---- */

/* Appends a SELECT without parameters that gives the queue's row of the listing "queues", all but
 * its workers; see mr_list(). Asks the planner first what each number would cost. */
mr_error *mr__queue_summary(PGconn *conn, const mr_queue_store *store, mr_buf *out) MR_MUST_CHECK;
/* The same for a queue that cannot be opened. */
void mr__queue_summary_broken(const char *queue, const char *table, const char *problem,
                              mr_buf *out);

/* ---- Between these files ---- */

/* What can be said against an order without the database. */
mr_error *mr__job_order_check(const char *queue, const mr_job_order *order) MR_MUST_CHECK;

mr_queue_source mr__queue_source(const mr_queue_store *store);

#endif
