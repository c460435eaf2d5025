/* The executors: threads that run batches, each with at most one connection. */
#include "runtime/executor.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct queue {
    mr_batch *first, *last;
} queue;

struct mr_executors {
    mr_executors_params params;
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t work;
    queue todo, done;
    bool ending;
    atomic_int renewals; /* raised to make every thread reconnect */
    pthread_t *threads;
    int started;
};

static void push(queue *q, mr_batch *batch)
{
    batch->next = NULL;
    if (q->last == NULL)
        q->first = batch;
    else
        q->last->next = batch;
    q->last = batch;
}

static mr_batch *pop(queue *q)
{
    mr_batch *batch = q->first;
    if (batch == NULL)
        return NULL;
    q->first = batch->next;
    if (q->first == NULL)
        q->last = NULL;
    batch->next = NULL;
    return batch;
}

/* The next batch; NULL when told to end, or with `*idle` set when none came for a while. */
static mr_batch *next_batch(mr_executors *e, bool may_idle, bool *idle)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t nanos = until.tv_nsec + e->params.idle_timeout % 1000000 * 1000;
    until.tv_sec += (time_t)(e->params.idle_timeout / 1000000 + nanos / 1000000000);
    until.tv_nsec = (long)(nanos % 1000000000);
    *idle = false;
    (void)pthread_mutex_lock(&e->lock);
    while (e->todo.first == NULL && !e->ending && !*idle) {
        if (!may_idle)
            (void)pthread_cond_wait(&e->work, &e->lock);
        else if (pthread_cond_timedwait(&e->work, &e->lock, &until) != 0)
            *idle = true;
    }
    mr_batch *batch = e->ending ? NULL : pop(&e->todo);
    (void)pthread_mutex_unlock(&e->lock);
    return batch;
}

static void finish(mr_executors *e, mr_batch *batch)
{
    (void)pthread_mutex_lock(&e->lock);
    push(&e->done, batch);
    (void)pthread_mutex_unlock(&e->lock);
    e->params.notify(e->params.user);
}

static void close_session(mr_executors *e, mr_session **session)
{
    if (*session == NULL)
        return;
    mr__session_close(*session);
    *session = NULL;
    atomic_fetch_sub(e->params.connections, 1);
}

static mr_error *want_session(mr_executors *e, mr_session **session, int *renewal)
{
    int renewals = atomic_load(&e->renewals);
    if (*session != NULL && (!mr__session_usable(*session) || *renewal != renewals))
        close_session(e, session);
    *renewal = renewals;
    if (*session != NULL)
        return NULL;
    MR_TRY(mr__session_open(&e->params.session, session));
    atomic_fetch_add(e->params.connections, 1);
    return NULL;
}

static void *run(void *argument)
{
    mr_executors *e = argument;
    mr_session *session = NULL;
    bool idle = false;
    int renewal = 0;
    for (;;) {
        mr_batch *batch = next_batch(e, session != NULL, &idle);
        if (batch == NULL && !idle)
            break;
        if (batch == NULL) {
            close_session(e, &session);
            continue;
        }
        batch->error = want_session(e, &session, &renewal);
        if (batch->error == NULL)
            mr__batch_run(batch, session);
        finish(e, batch);
    }
    close_session(e, &session);
    return NULL;
}

mr_error *mr__executors_new(const mr_executors_params *params, mr_executors **out)
{
    mr_executors *e = calloc(1, sizeof(*e));
    if (e == NULL)
        return mr__error_nomem();
    e->params = *params;
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

void mr__executors_submit(mr_executors *e, mr_batch *batch)
{
    (void)pthread_mutex_lock(&e->lock);
    push(&e->todo, batch);
    (void)pthread_cond_signal(&e->work);
    (void)pthread_mutex_unlock(&e->lock);
}

mr_batch *mr__executors_done(mr_executors *e)
{
    (void)pthread_mutex_lock(&e->lock);
    mr_batch *first = e->done.first;
    e->done = (queue){0};
    (void)pthread_mutex_unlock(&e->lock);
    return first;
}

void mr__executors_renew(mr_executors *e)
{
    atomic_fetch_add(&e->renewals, 1);
}

static void free_all(mr_batch *batch)
{
    while (batch != NULL) {
        mr_batch *next = batch->next;
        mr__batch_free(batch);
        batch = next;
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
    free_all(e->todo.first);
    free_all(e->done.first);
    (void)pthread_cond_destroy(&e->work);
    (void)pthread_mutex_destroy(&e->lock);
    free(e->threads);
    free(e);
}
