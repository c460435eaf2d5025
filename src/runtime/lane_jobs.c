/* A queue's jobs from claim to outcome: handed to handlers, collected, written in batches.
 *
 * What must stay true: a job is in the list of all from its claim until its outcome is known to be
 * written, or to be nobody's business any more; a handler's thread touches only what is under the
 * lock and the job it runs. */
#include "runtime/lane.h"
#include "runtime/worker.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    WRITE_LEAST = 100, /* while handlers are busy so many are waited for, … */
    LINGER = 5,        /* … at most so many milliseconds: a statement a job would be dear */
    SPELL = 100000,    /* microseconds a handler's thread stays with a queue while others wait */
    TROUBLE_WAIT = 500000,
    TROUBLE_MOST = 10000000,
    WRITE_ITSELF = 1, /* which statement of the flight is the outcomes' */
    LOCKED_WAIT = 50, /* milliseconds before a row that somebody had locked is tried again */
};

/* ---- Lines --------------------------------------------------------------------------------- */

void mr__lane_line_add(mr_lane_line *line, mr_lane_job *job)
{
    job->line = NULL;
    if (line->last != NULL)
        line->last->line = job;
    else
        line->first = job;
    line->last = job;
    line->count++;
}

mr_lane_job *mr__lane_line_take(mr_lane_line *line)
{
    mr_lane_job *job = line->first;
    if (job == NULL)
        return NULL;
    line->first = job->line;
    if (line->first == NULL)
        line->last = NULL;
    line->count--;
    job->line = NULL;
    return job;
}

/* ---- On executors' threads ----------------------------------------------------------------- */

typedef struct handler_task {
    mr_task task;
    mr_lane *lane;
} handler_task;

static mr_error *open_session(void *user, mr_session **session)
{
    return mr__seat_session(user, session);
}

static mr_lane_job *begin_next(mr_lane *lane)
{
    (void)pthread_mutex_lock(&lane->lock);
    mr_lane_job *job = mr__lane_line_take(&lane->waiting);
    if (job != NULL)
        job->state = MR_LANE_RUNNING;
    (void)pthread_mutex_unlock(&lane->lock);
    return job;
}

static void hand_back(mr_lane *lane, mr_lane_job *job)
{
    (void)pthread_mutex_lock(&lane->lock);
    bool news = lane->done.count == 0;
    mr__lane_line_add(&lane->done, job);
    (void)pthread_mutex_unlock(&lane->lock);
    if (news)
        mr__worker_signal(lane->worker);
}

/* Takes one job after the other without going back to the loop in between. */
static void run_handler(mr_task *task, mr_seat *seat)
{
    mr_lane *lane = ((handler_task *)task)->lane;
    const mr_clock *clock = lane->worker->clock;
    int64_t until = mr__clock_now(clock) + SPELL;
    mr_lane_job *job;
    while ((job = begin_next(lane)) != NULL) {
        atomic_store(&job->started, mr__clock_now(clock));
        mr__job_run(&job->job, open_session, seat);
        hand_back(lane, job);
        if (mr__clock_now(clock) >= until)
            break;
    }
}

/* ---- Back on the loop ----------------------------------------------------------------------- */

static void drop_handler(mr_task *task)
{
    free(task);
}

static void handler_done(mr_task *task)
{
    mr_lane *lane = ((handler_task *)task)->lane;
    lane->handlers--;
    free(task);
    mr__lane_collect(lane);
    mr__lane_feed(lane);
}

void mr__lane_feed(mr_lane *lane)
{
    (void)pthread_mutex_lock(&lane->lock);
    size_t waiting = lane->waiting.count;
    (void)pthread_mutex_unlock(&lane->lock);
    while (waiting > 0 && lane->handlers < lane->num_handlers) {
        handler_task *task = calloc(1, sizeof(*task));
        if (task == NULL)
            return; /* those that run take the rest */
        *task = (handler_task){
            .task = {.run = run_handler, .done = handler_done, .drop = drop_handler}, .lane = lane};
        lane->handlers++;
        lane->worker->running++;
        mr__executors_submit(lane->worker->executors, &task->task);
        waiting--;
    }
}

static mr_lane_job *make_job(mr_lane *lane, mr_jobs *jobs, size_t index)
{
    mr_lane_job *job = calloc(1, sizeof(*job));
    if (job == NULL)
        return NULL;
    mr_worker *w = lane->worker;
    job->job = (mr_job){.store = lane->store,
                        .worker = lane->identity,
                        .jobs = mr__jobs_ref(jobs),
                        .row = mr__jobs_at(jobs, index),
                        .handler = lane->handler,
                        .hooks = lane->hooks,
                        .logger = &w->logger,
                        .clock = w->clock,
                        .max_runtime = lane->max_runtime,
                        .deadline = INT64_MAX};
    job->job.outcome = (mr_outcome){
        .id = job->job.row.id, .fence = job->job.row.fence, .kind = MR_OUTCOME_RELEASE};
    job->next = lane->all;
    if (lane->all != NULL)
        lane->all->previous = job;
    lane->all = job;
    lane->claimed++;
    lane->active++;
    return job;
}

void mr__lane_take(mr_lane *lane, mr_jobs *jobs)
{
    for (size_t i = 0; i < mr__jobs_count(jobs); i++) {
        mr_lane_job *job = make_job(lane, jobs, i);
        if (job == NULL)
            continue; /* without memory it is left to the resetter */
        (void)pthread_mutex_lock(&lane->lock);
        mr__lane_line_add(&lane->waiting, job);
        (void)pthread_mutex_unlock(&lane->lock);
    }
}

void mr__lane_forget(mr_lane *lane, mr_lane_job *job)
{
    if (job->previous != NULL)
        job->previous->next = job->next;
    else
        lane->all = job->next;
    if (job->next != NULL)
        job->next->previous = job->previous;
    lane->claimed--;
    for (size_t i = 0; i < lane->beat_count; i++)
        if (lane->beating[i] == job)
            lane->beating[i] = NULL;
    mr__job_clear(&job->job);
    free(job);
}

static void count_outcome(mr_lane *lane, const mr_lane_job *job)
{
    mr_worker *w = lane->worker;
    switch (job->job.outcome.kind) {
    case MR_OUTCOME_COMPLETE:
        mr__count(w, MR_METRIC_JOBS_COMPLETED, 1);
        return;
    case MR_OUTCOME_ERROR:
    case MR_OUTCOME_FAIL:
        mr__count(w, MR_METRIC_JOBS_FAILED, 1);
        mr__log(&w->logger, MR_WARN, "job failed",
                "queue=%s" MR_SEP "job=%s" MR_SEP "error=%s" MR_SEP "retry=%s", lane->name,
                job->job.row.id, job->job.message == NULL ? "" : job->job.message,
                job->job.outcome.kind == MR_OUTCOME_ERROR ? "true" : "false");
        return;
    case MR_OUTCOME_CANCEL:
    case MR_OUTCOME_REQUEUE:
    case MR_OUTCOME_SNOOZE:
    case MR_OUTCOME_RELEASE:
    default:
        return;
    }
}

/* The job changed nothing: somebody else has it, or finished it, or deleted it. */
static void came_too_late(mr_lane *lane, const mr_lane_job *job)
{
    if (job->again)
        return; /* it was written, most likely, by the statement whose answer was lost */
    mr__count(lane->worker, MR_METRIC_JOBS_LATE, 1);
    mr__log(&lane->worker->logger, MR_WARN, "outcome came too late",
            "queue=%s" MR_SEP "job=%s" MR_SEP "fence=%" PRId64 MR_SEP
            "why=the job was reset, deleted or finished by another meanwhile; nothing was changed",
            lane->name, job->job.row.id, job->job.row.fence);
}

/* The handler could not run, or the connection was lost: the next jobs would fare no better, so
 * the queue rests, longer each time. */
static void given_back(mr_lane *lane, mr_lane_job *job)
{
    mr_worker *w = lane->worker;
    lane->sick++;
    int64_t wait = mr__jitter(mr__policy_wait(TROUBLE_WAIT, TROUBLE_MOST, lane->sick));
    lane->rest_until = mr__clock_now(w->clock) + wait;
    mr__log(&w->logger, lane->sick < MR_LANE_SICK ? MR_WARN : MR_ERROR, "job given back",
            "queue=%s" MR_SEP "job=%s" MR_SEP "error=%s" MR_SEP "in_a_row=%d" MR_SEP
            "retry_ms=%" PRId64,
            lane->name, job->job.row.id, mr_error_message(job->job.trouble), lane->sick,
            wait / 1000);
    mr_error_free(lane->last_error);
    lane->last_error = mr__error_copy(job->job.trouble);
    if (lane->sick == MR_LANE_SICK)
        mr__control_tell(w);
    mr__lane_look_in(lane, wait);
}

static void collect_one(mr_lane *lane, mr_lane_job *job)
{
    job->state = MR_LANE_DONE;
    lane->active--;
    if (mr_error_code(job->job.trouble) == MR_E_FATAL)
        mr__worker_fail(lane->worker,
                        mr__error_prefix(mr__error_copy(job->job.trouble), "queue '%s', job %s",
                                         lane->name, job->job.row.id));
    if (job->job.trouble != NULL) {
        given_back(lane, job);
    } else {
        lane->sick = 0;
    }
    if (job->job.written) {
        count_outcome(lane, job);
        mr__lane_forget(lane, job);
    } else if (job->job.outcome.id == NULL) {
        came_too_late(lane, job);
        mr__lane_forget(lane, job);
    } else {
        mr__lane_line_add(&lane->unwritten, job);
    }
}

static void on_write_timer(uv_timer_t *timer)
{
    mr__lane_write(timer->data);
}

/* Outcomes gather while handlers are busy, and are written at once when nothing else is going on.
 */
static void write_soon(mr_lane *lane)
{
    if (lane->active == 0 || lane->unwritten.count >= WRITE_LEAST)
        mr__lane_write(lane);
    else if (lane->unwritten.count > 0 && uv_is_active((uv_handle_t *)&lane->later) == 0)
        (void)uv_timer_start(&lane->later, on_write_timer, LINGER, 0);
}

void mr__lane_collect(mr_lane *lane)
{
    (void)pthread_mutex_lock(&lane->lock);
    mr_lane_line done = lane->done;
    lane->done = (mr_lane_line){0};
    (void)pthread_mutex_unlock(&lane->lock);
    mr_lane_job *job;
    while ((job = mr__lane_line_take(&done)) != NULL)
        collect_one(lane, job);
    write_soon(lane);
    mr__lane_look(lane);
}

/* Its outcome is to be written. */
static void put_back(mr_lane *lane, mr_lane_job *job)
{
    job->state = MR_LANE_DONE;
    mr__lane_line_add(&lane->unwritten, job);
}

void mr__lane_release(mr_lane *lane)
{
    (void)pthread_mutex_lock(&lane->lock);
    mr_lane_line waiting = lane->waiting;
    lane->waiting = (mr_lane_line){0};
    (void)pthread_mutex_unlock(&lane->lock);
    mr_lane_job *job;
    while ((job = mr__lane_line_take(&waiting)) != NULL) {
        lane->active--;
        put_back(lane, job); /* as it was made: to be given back */
    }
}

/* ---- Writing ------------------------------------------------------------------------------- */

/* False when the row is in somebody's hands just now. */
static bool wrote_one(mr_lane *lane, mr_lane_job *job, const mr_outcome *outcome)
{
    if (outcome->locked) {
        put_back(lane, job);
        return false;
    }
    if (outcome->became[0] == '\0')
        came_too_late(lane, job);
    else
        count_outcome(lane, job);
    mr__lane_forget(lane, job);
    return true;
}

/* The server refuses this very outcome, alone: the job fails with that reason. When even that is
 * refused, the job is left as it is, for people to look at once the resetter has given it up. */
static void refuse_outcome(mr_lane *lane, mr_lane_job *job, const mr_error *error)
{
    mr_worker *w = lane->worker;
    bool last = job->job.outcome.kind == MR_OUTCOME_FAIL;
    mr__log(&w->logger, MR_ERROR, "outcome refused",
            "queue=%s" MR_SEP "job=%s" MR_SEP "error=%s" MR_SEP "then=%s", lane->name,
            job->job.row.id, mr_error_message(error),
            last ? "the job is left to the resetter" : "the job fails with this reason");
    if (last) {
        mr__lane_forget(lane, job);
        return;
    }
    free(job->job.message);
    job->job.message = strdup(mr_error_message(error));
    job->job.outcome = (mr_outcome){.id = job->job.row.id,
                                    .fence = job->job.row.fence,
                                    .kind = MR_OUTCOME_FAIL,
                                    .message = job->job.message};
    put_back(lane, job);
}

/* Takes the error. A lost connection is waited out; a statement that the server refuses is tried
 * again with half of the outcomes, until the one to blame is alone: the others must not wait for
 * it. */
static void write_failed(mr_lane *lane, mr_error *error)
{
    mr_worker *w = lane->worker;
    size_t count = lane->writing_count;
    bool refused = mr_error_sqlstate(error)[0] != '\0' && !mr_error_retryable(error) &&
                   mr_error_code(error) != MR_E_CONNECT;
    if (mr_error_code(error) != MR_E_CANCELLED)
        mr__log(&w->logger, MR_WARN, "outcomes could not be written",
                "queue=%s" MR_SEP "jobs=%zu" MR_SEP "error=%s", lane->name, count,
                mr_error_message(error));
    lane->writing_count = 0;
    if (refused && count == 1) {
        refuse_outcome(lane, lane->writing[0], error);
    } else {
        for (size_t i = 0; i < count; i++) {
            lane->writing[i]->again = lane->writing[i]->again || !refused;
            put_back(lane, lane->writing[i]);
        }
        if (refused)
            lane->write_most = count / 2;
    }
    mr_error_free(error);
    int64_t wait = refused ? LOCKED_WAIT : mr__jitter(TROUBLE_WAIT) / 1000;
    (void)uv_timer_start(&lane->later, on_write_timer, (uint64_t)wait, 0);
}

static void on_written(void *user, PGresult **results, mr_error *error)
{
    mr_lane *lane = user;
    mr_worker *w = lane->worker;
    size_t count = lane->writing_count;
    if (error == NULL)
        error =
            mr__queue_finish_take(results[WRITE_ITSELF], lane->outcomes, count, &lane->mark, NULL);
    if (strcmp(mr_error_sqlstate(error), "55P03") == 0 && !lane->free_only) {
        /* Somebody has one of the rows locked: the others are written, that one is waited for. */
        mr_error_free(error);
        lane->free_only = true;
        for (size_t i = 0; i < count; i++)
            put_back(lane, lane->writing[i]);
        lane->writing_count = 0;
        mr__lane_write(lane);
        return;
    }
    lane->free_only = false;
    if (error != NULL) {
        write_failed(lane, error);
        if (w->life == MR_LIFE_STOPPING)
            mr__worker_settle_stop(w);
        return;
    }
    lane->write_most =
        lane->write_most * 2 < MR_LANE_WRITE_MOST ? lane->write_most * 2 : MR_LANE_WRITE_MOST;
    bool all = true;
    for (size_t i = 0; i < count; i++)
        all = wrote_one(lane, lane->writing[i], &lane->outcomes[i]) && all;
    lane->writing_count = 0;
    if (all)
        write_soon(lane);
    else
        (void)uv_timer_start(&lane->later, on_write_timer, LOCKED_WAIT, 0);
    mr__lane_look(lane);
    if (w->life == MR_LIFE_STOPPING)
        mr__worker_settle_stop(w);
    else
        mr__dispatch_settle(w);
}

static void on_written_pooled(void *user, PGresult **results, mr_error *error)
{
    PGresult *shifted[WRITE_ITSELF + 1] = {NULL};
    if (error == NULL)
        shifted[WRITE_ITSELF] = results[0];
    on_written(user, shifted, error);
}

/* Sessions do not last. */
static bool pooled(const mr_worker *w)
{
    return mr__bag_number(&w->conf->bag, MR_OPT_LEADER_STRATEGY) == 1;
}

static bool writing_room(mr_lane *lane)
{
    if (lane->writing == NULL)
        lane->writing = calloc(MR_LANE_WRITE_MOST, sizeof(*lane->writing));
    if (lane->outcomes == NULL)
        lane->outcomes = calloc(MR_LANE_WRITE_MOST, sizeof(*lane->outcomes));
    return lane->writing != NULL && lane->outcomes != NULL;
}

void mr__lane_write(mr_lane *lane)
{
    mr_worker *w = lane->worker;
    if (lane->writing_count > 0 || lane->unwritten.count == 0 ||
        !mr__aconn_up(mr__worker_jobs_conn(w)) || !writing_room(lane))
        return;
    mr_lane_job *job;
    while (lane->writing_count < lane->write_most &&
           (job = mr__lane_line_take(&lane->unwritten)) != NULL) {
        job->state = MR_LANE_WRITING;
        lane->outcomes[lane->writing_count] = job->job.outcome;
        lane->writing[lane->writing_count++] = job;
    }
    MR_AUTO_CALL call = {0};
    mr_error *error =
        mr__queue_finish_call(lane->store, lane->identity, lane->outcomes, lane->writing_count,
                              lane->free_only || pooled(w), &call);
    if (error != NULL) {
        write_failed(lane, error); /* only memory can be short */
        return;
    }
    /* The connection is shared: what it waits for is limited for this statement alone. A pooler's
     * may be anybody's after each statement: there locked rows are left alone from the start. */
    mr_flight_statement flight[] = {
        {.sql = "SELECT pg_catalog.set_config('lock_timeout', '250ms', false)"},
        [WRITE_ITSELF] = {.sql = call.sql, .count = call.count},
        {.sql = "RESET lock_timeout"}};
    memcpy(flight[WRITE_ITSELF].values, call.values,
           (size_t)call.count * sizeof(flight[WRITE_ITSELF].values[0]));
    if (pooled(w))
        mr__aconn_send(mr__worker_jobs_conn(w), &flight[WRITE_ITSELF], 1, on_written_pooled, lane);
    else
        mr__aconn_send(mr__worker_jobs_conn(w), flight, 3, on_written, lane);
}
