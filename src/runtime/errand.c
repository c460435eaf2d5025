/* What executors do for consumers: batches in a transaction, detached ones, replays of dead
 * letters. The `run_` functions are on an executor's thread and touch nothing of the place. */
#include "runtime/worker.h"

#include <stdlib.h>

typedef struct errand {
    mr_task task;
    mr_place *place;
    mr_errand_kind kind;
    mr_batch *batch; /* a replay's fence */
    mr_replay replay;
} errand;

static mr_error *open_session(void *user, mr_session **session)
{
    return mr__seat_session(user, session);
}

static void leave_session(void *user)
{
    mr__seat_leave(user);
}

static mr_sessions sessions_of(mr_seat *seat)
{
    return (mr_sessions){.open = open_session, .leave = leave_session, .user = seat};
}

/* No connection: nobody's fault. */
static void not_run(mr_batch *batch, mr_error *error)
{
    batch->error = error;
    batch->reached = batch->expected;
    batch->failure = (mr_failure){.fault = mr__fault_of(error, false, false), .end = batch->target};
}

static void run_batch(mr_task *task, mr_seat *seat)
{
    errand *e = (errand *)task;
    mr_session *session = NULL;
    mr_error *error = mr__seat_session(seat, &session);
    if (error != NULL)
        not_run(e->batch, error);
    else
        mr__batch_run(e->batch, session);
}

static void run_deliver(mr_task *task, mr_seat *seat)
{
    errand *e = (errand *)task;
    /* A detached handler may take its time, and a connection that only waits is one too many. */
    mr__seat_leave(seat);
    mr_sessions sessions = sessions_of(seat);
    mr__batch_deliver(e->batch, &sessions);
}

static void run_replay(mr_task *task, mr_seat *seat)
{
    mr_sessions sessions = sessions_of(seat);
    mr__replay_run(&((errand *)task)->replay, &sessions);
}

static void drop(mr_task *task)
{
    errand *e = (errand *)task;
    mr__batch_free(e->batch);
    mr_error_free(e->replay.error);
    free(e);
}

/* ---- Back on the loop ----------------------------------------------------------------------- */

static void done(mr_task *task)
{
    errand *e = (errand *)task;
    mr_place *p = e->place;
    mr_worker *w = p->worker;
    w->errands--;
    switch (e->kind) {
    case MR_ERRAND_BATCH:
        mr__count(w, MR_METRIC_ROUND_TRIPS, e->batch->round_trips);
        mr__outcome_batch(p, &e->batch);
        break;
    case MR_ERRAND_DELIVER:
        mr__outcome_delivered(p, e->batch);
        break;
    case MR_ERRAND_REPLAY:
    default:
        mr__outcome_replayed(p, &e->replay);
        break;
    }
    drop(task);
    if (!p->owned)
        mr__place_let_go(p);
    else if (w->life == MR_LIFE_RUNNING)
        mr__dispatch_step(p);
}

void mr__errand_send(mr_place *p, mr_errand_kind kind, mr_batch *batch)
{
    static void (*const runs[])(mr_task *, mr_seat *) = {run_batch, run_deliver, run_replay};
    errand *e = calloc(1, sizeof(*e));
    if (e == NULL) {
        mr__batch_free(batch);
        p->reload = true;
        mr__place_rest(p, 1000000, "no memory");
        return;
    }
    mr_worker *w = p->worker;
    *e = (errand){.task = {.run = runs[kind], .done = done, .drop = drop},
                  .place = p,
                  .kind = kind,
                  .batch = batch};
    if (kind == MR_ERRAND_REPLAY)
        e->replay = (mr_replay){
            .fence = batch, .sql = &w->replay_sql, .by_key = p->by_key, .detached = p->detached};
    atomic_store(&p->recalled, false);
    mr__place_set_state(p, MR_PLACE_RUNNING, "errand");
    w->running++;
    w->errands++;
    mr__executors_submit(w->executors, &e->task);
}
