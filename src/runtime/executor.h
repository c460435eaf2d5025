/* The executors: threads that run tasks, each with at most one connection, opened when needed and
 * closed when idle. */
#ifndef MR_RUNTIME_EXECUTOR_H
#define MR_RUNTIME_EXECUTOR_H

#include "pg/session.h"

#include <pthread.h>

typedef struct mr_executors mr_executors;
/* A thread's place among them: its connection. */
typedef struct mr_seat mr_seat;

/* Something to run; the first member of whatever it is. */
typedef struct mr_task {
    void (*run)(struct mr_task *task, mr_seat *seat); /* on an executor's thread */
    void (*done)(struct mr_task *task); /* it was run: frees it; for whoever takes finished tasks */
    void (*drop)(struct mr_task *task); /* nobody will take it any more: frees it */
    struct mr_task *next;
} mr_task;

typedef struct mr_executors_params {
    int count;
    mr_session_params session; /* strings are borrowed */
    int64_t idle_timeout;      /* microseconds */
    /* A task is done: tell the loop to call mr__executors_done(). From an executor's thread. */
    void (*notify)(void *user);
    void *user;
    _Atomic int64_t *connections; /* counts open ones */
} mr_executors_params;

mr_error *mr__executors_new(const mr_executors_params *params, mr_executors **out) MR_MUST_CHECK;
/* Gives a task to the next free thread; first come, first served. */
void mr__executors_submit(mr_executors *executors, mr_task *task);
/* A task that is submitted now is begun at once. */
bool mr__executors_spare(mr_executors *executors);
/* Tasks that are finished since the last call, oldest first, linked by `next`. */
mr_task *mr__executors_done(mr_executors *executors);
/* Every thread opens its connection anew, under this application name, before it uses it next. */
void mr__executors_renew(mr_executors *executors, const char *application);
/* Waits for the threads to end; tasks not begun or not taken are dropped. */
void mr__executors_free(mr_executors *executors);

/* For a task that runs. The thread's session, opened when it has none. */
mr_error *mr__seat_session(mr_seat *seat, mr_session **out) MR_MUST_CHECK;
/* Closes it: for a task that will take long without one. */
void mr__seat_leave(mr_seat *seat);

#endif
