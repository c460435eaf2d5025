/* How far consumers are behind: looked at every lag_check_interval, logged when it is too much,
 * told to the program's callback on an executor's thread. */
#include "runtime/worker.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct reading {
    char *consumer;
    int64_t lag, position, head;
    bool over;
} reading;

typedef struct report {
    mr_task task;
    mr_worker *worker;
    mr_lag_fn callback;
    void *user;
    size_t count;
    reading readings[];
} report;

static void run(mr_task *task, mr_seat *seat)
{
    (void)seat;
    const report *r = (const report *)task;
    for (size_t i = 0; i < r->count; i++)
        r->callback(r->user, r->readings[i].consumer, r->readings[i].lag, r->readings[i].position,
                    r->readings[i].head, r->readings[i].over);
}

static void drop(mr_task *task)
{
    report *r = (report *)task;
    r->worker->lag_told = false;
    for (size_t i = 0; i < r->count; i++)
        free(r->readings[i].consumer);
    free(r);
}

/* The reading of one consumer; a crossing of the threshold is news. */
static reading read_place(mr_place *p)
{
    mr_worker *w = p->worker;
    int64_t head = mr__reader_head(w->reader),
            most = mr__bag_number(&w->conf->bag, MR_OPT_LAG_THRESHOLD);
    reading r = {.position = p->saved,
                 .head = head > p->saved ? head : p->saved,
                 .lag = head > p->saved ? head - p->saved : 0};
    r.over = most >= 0 && r.lag > most;
    if (r.over != p->lagging)
        mr__log(&w->logger, r.over ? MR_WARN : MR_INFO,
                r.over ? "consumer lags" : "consumer caught up",
                "consumer=%s" MR_SEP "lag=%" PRId64 MR_SEP "position=%" PRId64 MR_SEP
                "head=%" PRId64 MR_SEP "threshold=%" PRId64,
                p->name, r.lag, r.position, r.head, most);
    p->lagging = r.over;
    return r;
}

static void submit(mr_worker *w, report *r)
{
    r->task = (mr_task){.run = run, .done = drop, .drop = drop};
    r->worker = w;
    w->lag_told = true;
    r->callback = w->conf->on_lag;
    r->user = w->conf->on_lag_user;
    w->running++;
    mr__executors_submit(w->executors, &r->task);
}

static void on_timer(uv_timer_t *timer)
{
    mr_worker *w = timer->data;
    if (w->life != MR_LIFE_RUNNING || w->reader == NULL || !mr__reader_ready(w->reader))
        return;
    report *r = NULL;
    /* When handlers keep all executors busy one report waits, not a queue of them. */
    if (w->conf->on_lag != NULL && !w->lag_told)
        r = calloc(1, sizeof(*r) + w->place_count * sizeof(r->readings[0]));
    for (size_t i = 0; i < w->place_count; i++) {
        mr_place *p = w->places[i];
        if (p->state == MR_PLACE_AWAY)
            continue;
        reading one = read_place(p);
        if (r == NULL)
            continue;
        one.consumer = strdup(p->name);
        if (one.consumer != NULL)
            r->readings[r->count++] = one;
    }
    if (r != NULL)
        submit(w, r);
}

void mr__lag_start(mr_worker *w)
{
    uint64_t interval = (uint64_t)(mr__bag_number(&w->conf->bag, MR_OPT_LAG_INTERVAL) / 1000);
    (void)uv_timer_start(&w->lag, on_timer, interval, interval);
}
