/* What to do about a failure: try again, look for the event that is to blame, give it up, pause,
 * stop. Pure: no clock, no I/O. */
#ifndef MR_CONSUMER_POLICY_H
#define MR_CONSUMER_POLICY_H

#include "base/error.h"

/* Whose fault a failure is. */
typedef enum mr_fault {
    MR_FAULT_NOBODY,    /* the server or the connection: tried again, held against nobody */
    MR_FAULT_RETRYABLE, /* the event's or its handler's; trying again may help */
    MR_FAULT_PERMANENT, /* the event's; trying again cannot help */
    MR_FAULT_HANDLER,   /* the handler cannot run at all, whatever the event */
    MR_FAULT_FATAL,     /* the handler says that the process must stop */
} mr_fault;

/* `own`: the handler returned it and no statement failed. `stopping`: a forced stop is under way.
 */
mr_fault mr__fault_of(const mr_error *error, bool own, bool stopping);

/* In the order of the option's choices. */
typedef enum mr_on_failure { MR_ON_PAUSE, MR_ON_FATAL, MR_ON_DEAD_LETTER } mr_on_failure;

typedef struct mr_policy {
    mr_on_failure on_failure;
    int64_t max_retries;            /* negative = unlimited */
    int64_t retry_base, retry_most; /* microseconds */
    int64_t max_failures;           /* fatal: 0 = never */
    int64_t fatal_base, fatal_most; /* fatal: waits */
} mr_policy;

/* How the next batch runs. */
typedef enum mr_mode {
    MR_MODE_WHOLE,   /* all its events together */
    MR_MODE_ISOLATE, /* a savepoint an event */
    MR_MODE_SINGLE,  /* one event a batch: what fails only at the commit */
} mr_mode;

/* What is known of the trouble at hand; zero = none. */
typedef struct mr_trial {
    int attempts;     /* failures so far of the one that is suspected */
    int rounds;       /* failures so far, whoever's */
    int64_t suspect;  /* the event that failed last, 0 = not known */
    int64_t position; /* the event to blame, 0 = none is proven yet */
    int64_t until;    /* the mode holds for batches that begin before this position */
    mr_mode mode;
} mr_trial;

/* A batch that failed. */
typedef struct mr_failure {
    mr_fault fault;
    int64_t position; /* the event that failed, 0 = not known */
    bool proven;      /* it alone is to blame: it ran by itself, or its own answer says so */
    int64_t end;      /* the batch's last position */
} mr_failure;

typedef enum mr_verdict {
    MR_VERDICT_RETRY,   /* again, in the trial's mode, after a wait */
    MR_VERDICT_CONDEMN, /* the event becomes a dead letter */
    MR_VERDICT_PAUSE,
    MR_VERDICT_STOP, /* the process ends */
} mr_verdict;

/* Decides, and notes it in the trial. `*wait` is how long, before jitter. Never called for
 * MR_FAULT_NOBODY. */
mr_verdict mr__policy_decide(const mr_policy *policy, mr_trial *trial, const mr_failure *failure,
                             int64_t *wait);
/* A batch committed up to `position`: the trial is over once that has passed it. */
void mr__policy_passed(mr_trial *trial, int64_t position);
/* The wait before attempt number `attempt` + 1: doubles from `base` up to `most`. */
int64_t mr__policy_wait(int64_t base, int64_t most, int attempt);

#endif
