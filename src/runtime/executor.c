/* The executors: threads that run tasks, each with at most one connection. */
#include "runtime/executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MR_APPLICATION_MAX = 64 };
enum { GHOST_DEADLINE = 5000000 }; /* microseconds to end a session that was left behind */

typedef struct queue {
    mr_task *first, *last;
} queue;

struct mr_executors {
    mr_executors_params params;
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t work;
    queue todo, done;
    int waiting; /* threads without a task */
    int queued;  /* tasks in todo */
    bool ending;
    char application[MR_APPLICATION_MAX]; /* under the lock */
    atomic_int renewals;                  /* raised to make every thread reconnect */
    pthread_t *threads;
    int started;
};

static void push(queue *q, mr_task *task)
{
    task->next = NULL;
    if (q->last == NULL)
        q->first = task;
    else
        q->last->next = task;
    q->last = task;
}

static mr_task *pop(queue *q)
{
    mr_task *task = q->first;
    if (task == NULL)
        return NULL;
    q->first = task->next;
    if (q->first == NULL)
        q->last = NULL;
    task->next = NULL;
    return task;
}

/* The next task; NULL when told to end, or with `*idle` set when none came for a while. */
static mr_task *next_task(mr_executors *e, bool may_idle, bool *idle)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t nanos = until.tv_nsec + e->params.idle_timeout % 1000000 * 1000;
    until.tv_sec += (time_t)(e->params.idle_timeout / 1000000 + nanos / 1000000000);
    until.tv_nsec = (long)(nanos % 1000000000);
    *idle = false;
    (void)pthread_mutex_lock(&e->lock);
    e->waiting++;
    while (e->todo.first == NULL && !e->ending && !*idle) {
        if (!may_idle)
            (void)pthread_cond_wait(&e->work, &e->lock);
        else if (pthread_cond_timedwait(&e->work, &e->lock, &until) != 0)
            *idle = true;
    }
    e->waiting--;
    mr_task *task = e->ending ? NULL : pop(&e->todo);
    e->queued -= task != NULL ? 1 : 0;
    (void)pthread_mutex_unlock(&e->lock);
    return task;
}

static void finish(mr_executors *e, mr_task *task)
{
    (void)pthread_mutex_lock(&e->lock);
    push(&e->done, task);
    (void)pthread_mutex_unlock(&e->lock);
    e->params.notify(e->params.user);
}

struct mr_seat {
    mr_executors *executors;
    mr_session *session;                  /* NULL = none */
    int renewal;                          /* of which it is */
    int backend;                          /* process id of the server's side */
    int ghost;                            /* the backend of a connection that was lost, 0 = none */
    char application[MR_APPLICATION_MAX]; /* its connection's */
};

void mr__seat_leave(mr_seat *s)
{
    if (s->session == NULL)
        return;
    if (!mr__session_sound(s->session))
        s->ghost = s->backend;
    mr__session_close(s->session);
    s->session = NULL;
    atomic_fetch_sub(s->executors->params.connections, 1);
}

/* The server may not know that a connection is lost: when a firewall forgot it, or a host in
 * between fell silent. It then waits for the rest of the batch, which no timeout of its own ends as
 * long as the pipeline has no sync, and holds the checkpoint's row until TCP gives up, for hours.
 */
static void end_ghost(mr_executors *e, mr_session *session, int backend, const char *application)
{
    char pid[16];
    (void)snprintf(pid, sizeof(pid), "%d", backend);
    const char *values[] = {pid, application};
    mr_tx *tx = NULL;
    mr_error *error =
        mr__tx_begin(session, mr__clock_now(e->params.session.clock) + GHOST_DEADLINE, &tx);
    if (error == NULL) {
        error = mr_tx_exec(tx,
                           "SELECT pg_catalog.pg_terminate_backend(a.pid)"
                           " FROM pg_catalog.pg_stat_activity AS a WHERE a.pid = $1::int4"
                           " AND a.application_name = $2::text AND a.xact_start IS NOT NULL",
                           2, values);
        mr_error_free(error);
        error = mr__tx_commit(tx, NULL);
    }
    mr_error_free(error); /* the batch meets the same trouble and tells it */
}

mr_error *mr__seat_session(mr_seat *s, mr_session **out)
{
    mr_executors *e = s->executors;
    int renewals = atomic_load(&e->renewals);
    if (s->session != NULL && (!mr__session_usable(s->session) || s->renewal != renewals))
        mr__seat_leave(s);
    s->renewal = renewals;
    if (s->session == NULL) {
        (void)pthread_mutex_lock(&e->lock);
        memcpy(s->application, e->application, sizeof(s->application));
        (void)pthread_mutex_unlock(&e->lock);
        mr_session_params params = e->params.session;
        params.conn.application = s->application;
        MR_TRY(mr__session_open(&params, &s->session));
        atomic_fetch_add(e->params.connections, 1);
        s->backend = PQbackendPID(mr__session_conn(s->session));
        if (s->ghost != 0)
            end_ghost(e, s->session, s->ghost, s->application);
        s->ghost = 0;
    }
    *out = s->session;
    return NULL;
}

static void *run(void *argument)
{
    mr_executors *e = argument;
    mr_seat own = {.executors = e};
    bool idle = false;
    for (;;) {
        mr_task *task = next_task(e, own.session != NULL, &idle);
        if (task == NULL && !idle)
            break;
        if (task == NULL) {
            mr__seat_leave(&own);
            continue;
        }
        task->run(task, &own);
        finish(e, task);
    }
    mr__seat_leave(&own);
    return NULL;
}

mr_error *mr__executors_new(const mr_executors_params *params, mr_executors **out)
{
    mr_executors *e = calloc(1, sizeof(*e));
    if (e == NULL)
        return mr__error_nomem();
    e->params = *params;
    (void)snprintf(e->application, sizeof(e->application), "%s", params->session.conn.application);
    (void)pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&e->work, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    e->threads = calloc((size_t)params->count, sizeof(*e->threads));
    if (e->threads == NULL) {
        mr__executors_free(e);
        return mr__error_nomem();
    }
    for (; e->started < params->count; e->started++) {
        int problem = pthread_create(&e->threads[e->started], NULL, run, e);
        if (problem != 0) {
            mr__executors_free(e);
            return mr__error(MR_E_IO, "cannot start a thread: %s", strerror(problem));
        }
    }
    *out = e;
    return NULL;
}

void mr__executors_submit(mr_executors *e, mr_task *task)
{
    (void)pthread_mutex_lock(&e->lock);
    push(&e->todo, task);
    e->queued++;
    (void)pthread_cond_signal(&e->work);
    (void)pthread_mutex_unlock(&e->lock);
}

bool mr__executors_spare(mr_executors *e)
{
    (void)pthread_mutex_lock(&e->lock);
    bool spare = e->waiting > e->queued;
    (void)pthread_mutex_unlock(&e->lock);
    return spare;
}

mr_task *mr__executors_done(mr_executors *e)
{
    (void)pthread_mutex_lock(&e->lock);
    mr_task *first = e->done.first;
    e->done = (queue){0};
    (void)pthread_mutex_unlock(&e->lock);
    return first;
}

void mr__executors_renew(mr_executors *e, const char *application)
{
    (void)pthread_mutex_lock(&e->lock);
    (void)snprintf(e->application, sizeof(e->application), "%s", application);
    (void)pthread_mutex_unlock(&e->lock);
    atomic_fetch_add(&e->renewals, 1);
}

static void drop_all(mr_task *task)
{
    while (task != NULL) {
        mr_task *next = task->next;
        task->drop(task);
        task = next;
    }
}

void mr__executors_free(mr_executors *e)
{
    if (e == NULL)
        return;
    (void)pthread_mutex_lock(&e->lock);
    e->ending = true;
    (void)pthread_cond_broadcast(&e->work);
    (void)pthread_mutex_unlock(&e->lock);
    for (int i = 0; i < e->started; i++)
        (void)pthread_join(e->threads[i], NULL);
    drop_all(e->todo.first);
    drop_all(e->done.first);
    (void)pthread_cond_destroy(&e->work);
    (void)pthread_mutex_destroy(&e->lock);
    free(e->threads);
    free(e);
}
