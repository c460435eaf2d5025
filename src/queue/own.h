/* The built-in table of jobs from its operator's side. What changes rows is done by the functions
 * in sql/functions, which know the rules of keys and leave a row of queue_audit; here are the
 * calls. Blocking, on the caller's connection. */
#ifndef MR_QUEUE_OWN_H
#define MR_QUEUE_OWN_H

#include "queue/operate.h"

/* A queue of that table, whether or not a configuration has it. */
typedef struct mr_own_queue {
    const mr_names *names;
    const char *name; /* NULL: all of them, where a call says so */
    int64_t lease;    /* microseconds without a sign of life after which a claim is over */
} mr_own_queue;

/* The default of claim_lease, for a queue that no configuration describes. */
#define MR_OWN_LEASE INT64_C(90000000)

/* MR_E_SCHEMA unless the database has the table. */
mr_error *mr__own_require(PGconn *conn, const mr_names *names) MR_MUST_CHECK;
/* Whether anybody has said something about the queue, or it has jobs. When not, `*near` (may stay
 * NULL) is the nearest name that is known, free(). */
mr_error *mr__own_known(PGconn *conn, const mr_names *names, const char *name, bool *known,
                        char **near) MR_MUST_CHECK;

/* See mr_queue_jobs() and mr_queue_job() in the public header. The list may be of all queues. */
mr_error *mr__own_list(PGconn *conn, const mr_own_queue *own, const mr_job_filter *filter,
                       PGresult **rows) MR_MUST_CHECK;
mr_error *mr__own_show(PGconn *conn, const mr_own_queue *own, const char *id,
                       PGresult **rows) MR_MUST_CHECK;
/* In transactions of some hundred jobs each, unless the connection is in one. */
mr_error *mr__own_operate(PGconn *conn, const mr_own_queue *own, const mr_job_order *order,
                          PGresult **rows) MR_MUST_CHECK;
/* `rows` may be NULL; else the row of the audit. */
mr_error *mr__own_pause(PGconn *conn, const mr_own_queue *own, bool resume, const char *actor,
                        const char *reason, PGresult **rows) MR_MUST_CHECK;

mr_error *mr__own_count(PGconn *conn, const mr_own_queue *own, unsigned states, bool any,
                        int64_t *count) MR_MUST_CHECK;
mr_error *mr__own_wait(PGconn *conn, const mr_own_queue *own, int64_t *wait) MR_MUST_CHECK;

#endif
