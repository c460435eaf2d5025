/* The executors: threads that run batches, each with at most one connection, opened when needed and
 * closed when idle. */
#ifndef MR_RUNTIME_EXECUTOR_H
#define MR_RUNTIME_EXECUTOR_H

#include "consumer/batch.h"

#include <pthread.h>

typedef struct mr_executors mr_executors;

typedef struct mr_executors_params {
    int count;
    mr_session_params session; /* strings are borrowed */
    int64_t idle_timeout;      /* microseconds */
    /* A batch is done: tell the loop to call mr__executors_done(). From an executor's thread. */
    void (*notify)(void *user);
    void *user;
    _Atomic int64_t *connections; /* counts open ones */
} mr_executors_params;

mr_error *mr__executors_new(const mr_executors_params *params, mr_executors **out) MR_MUST_CHECK;
/* Gives a batch to the next free thread; first come, first served. */
void mr__executors_submit(mr_executors *executors, mr_batch *batch);
/* Batches that are finished since the last call, oldest first, linked by `next`. */
mr_batch *mr__executors_done(mr_executors *executors);
/* Every thread opens its connection anew before its next batch. No batch may be under way. */
void mr__executors_renew(mr_executors *executors);
/* Waits for the threads to end; batches not begun are freed. */
void mr__executors_free(mr_executors *executors);

#endif
