/* A queue's jobs from claim to outcome: handed to handlers, collected. lane_write.c writes what
 * became of them.
 *
 * What must stay true: a job is in the list of all from its claim until its outcome is known to be
 * written, or to be nobody's business any more; a handler's thread touches only what is under the
 * lock and the job it runs. */
#include "base/text.h"
#include "queue/builtin.h"
#include "runtime/lane.h"
#include "runtime/worker.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    SPELL = 100000, /* microseconds a handler's thread stays with a queue while others wait */
    TROUBLE_WAIT = 500000,
    TROUBLE_MOST = 10000000,
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
        job->ended = mr__clock_now(clock);
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

/* A job's own timeout comes before the queue's. */
static int64_t runtime_of(const mr_lane *lane, const mr_job_row *row)
{
    int column = lane->builtin ? mr__jobs_value_find(row->jobs, MR_BUILTIN_TIMEOUT) : -1;
    const char *own = column < 0 ? NULL : mr__job_value_at(row, (size_t)column);
    int64_t ms = 0;
    return own != NULL && mr__text_int(own, &ms) && ms > 0 ? ms * 1000 : lane->max_runtime;
}

void mr__lane_job_init(mr_lane *lane, mr_jobs *jobs, size_t index, mr_job *out)
{
    mr_worker *w = lane->worker;
    *out = (mr_job){.store = lane->store,
                    .worker = lane->identity,
                    .jobs = mr__jobs_ref(jobs),
                    .row = mr__jobs_at(jobs, index),
                    .handler = lane->handler,
                    .hooks = lane->hooks,
                    .logger = &w->logger,
                    .clock = w->clock,
                    .deadline = INT64_MAX};
    out->max_runtime = runtime_of(lane, &out->row);
    out->outcome =
        (mr_outcome){.id = out->row.id, .fence = out->row.fence, .kind = MR_OUTCOME_RELEASE};
}

static mr_lane_job *make_job(mr_lane *lane, mr_jobs *jobs, size_t index)
{
    mr_lane_job *job = calloc(1, sizeof(*job));
    if (job == NULL)
        return NULL;
    mr__lane_job_init(lane, jobs, index, &job->job);
    if (lane->builtin)
        job->claim = mr__lane_claim_open(lane, job->job.row.fence);
    if (lane->builtin && job->claim == NULL) {
        mr__job_clear(&job->job);
        free(job);
        return NULL;
    }
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
    mr_lane_claim *claim = NULL;
    if (lane->builtin) {
        claim = mr__lane_claim_open(lane, mr__jobs_at(jobs, 0).fence);
        if (claim == NULL)
            return; /* what is not known here is given back by the database */
    }
    for (size_t i = 0; i < mr__jobs_count(jobs); i++) {
        mr_lane_job *job = make_job(lane, jobs, i);
        if (job == NULL) { /* without memory it is left to the resetter */
            if (claim != NULL)
                claim->kept = true;
            continue;
        }
        (void)pthread_mutex_lock(&lane->lock);
        mr__lane_line_add(&lane->waiting, job);
        (void)pthread_mutex_unlock(&lane->lock);
    }
    if (claim != NULL)
        claim->open--; /* the one it was opened with */
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
    if (job->claim != NULL)
        job->claim->open--;
    for (size_t i = 0; i < lane->beat_count; i++)
        if (lane->beating[i] == job)
            lane->beating[i] = NULL;
    mr__job_clear(&job->job);
    free(job);
}

void mr__lane_abandon(mr_lane *lane, mr_lane_job *job)
{
    if (job->claim != NULL)
        job->claim->kept = true;
    mr__lane_forget(lane, job);
}

void mr__lane_count(mr_lane *lane, const mr_job *job, const char *became)
{
    mr_worker *w = lane->worker;
    if (strcmp(became, "canceled") == 0) {
        mr__log(&w->logger, MR_INFO, "job canceled",
                "queue=%s" MR_SEP "job=%s" MR_SEP "why=it was asked for while it ran", lane->name,
                job->row.id);
        return;
    }
    switch (job->outcome.kind) {
    case MR_OUTCOME_COMPLETE:
        mr__count(w, MR_METRIC_JOBS_COMPLETED, 1);
        return;
    case MR_OUTCOME_ERROR:
    case MR_OUTCOME_FAIL:
        mr__count(w, MR_METRIC_JOBS_FAILED, 1);
        /* Where its handler's transaction wrote the outcome, the state is not told. */
        mr__log(&w->logger, MR_WARN, strcmp(became, "errored") == 0 ? "job errored" : "job failed",
                "queue=%s" MR_SEP "job=%s" MR_SEP "error=%s" MR_SEP "retry=%s", lane->name,
                job->row.id, job->message == NULL ? "" : job->message,
                became[0] != '\0' ? (strcmp(became, "errored") == 0 ? "true" : "false")
                                  : (job->outcome.kind == MR_OUTCOME_ERROR ? "maybe" : "false"));
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
void mr__lane_late(mr_lane *lane, mr_lane_job *job)
{
    if (job->again)
        return; /* it was written, most likely, by the statement whose answer was lost */
    mr__lane_tell_lost(lane, job);
    mr__count(lane->worker, MR_METRIC_JOBS_LATE, 1);
    mr__log(&lane->worker->logger, MR_WARN, "outcome came too late",
            "queue=%s" MR_SEP "job=%s" MR_SEP "fence=%" PRId64 MR_SEP
            "why=the job was reset, deleted or finished by another meanwhile; nothing was changed",
            lane->name, job->job.row.id, job->job.row.fence);
}

void mr__lane_despair(mr_lane *lane, int in_a_row, const mr_error *error)
{
    mr_worker *w = lane->worker;
    if (in_a_row >= MR_LANE_SICK && mr_error_code(error) == MR_E_IO &&
        mr__bag_number(&w->conf->bag, MR_OPT_ONCE) != 0)
        mr__worker_fail(w, mr__error_prefix(mr__error_copy(error),
                                            "queue '%s': its jobs cannot run", lane->name));
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
    mr__lane_despair(lane, lane->sick, job->job.trouble);
    mr__lane_look_in(lane, wait);
}

/* A moving average; never 0 once it is known. */
static void note_pace(mr_lane *lane, const mr_lane_job *job)
{
    int64_t started = atomic_load(&job->started);
    int64_t took = started == 0 ? 0 : job->ended - started;
    if (started == 0 || took < 0)
        return;
    lane->pace = lane->pace == 0 ? took : lane->pace + (took - lane->pace) / 8;
    lane->pace = lane->pace < 1 ? 1 : lane->pace;
}

static void collect_one(mr_lane *lane, mr_lane_job *job)
{
    note_pace(lane, job);
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
        mr__lane_count(lane, &job->job, "");
        mr__lane_key_of(lane, &job->job, "");
        mr__lane_forget(lane, job);
    } else if (job->job.outcome.id == NULL) {
        mr__lane_late(lane, job);
        mr__lane_forget(lane, job);
    } else {
        mr__lane_line_add(&lane->unwritten, job);
    }
}

void mr__lane_collect(mr_lane *lane)
{
    if (lane->transaction)
        return; /* its batches come back whole */
    (void)pthread_mutex_lock(&lane->lock);
    mr_lane_line done = lane->done;
    lane->done = (mr_lane_line){0};
    (void)pthread_mutex_unlock(&lane->lock);
    mr_lane_job *job;
    while ((job = mr__lane_line_take(&done)) != NULL)
        collect_one(lane, job);
    mr__lane_promote(lane);
    mr__lane_write_soon(lane);
    mr__lane_look(lane);
}

/* Its outcome is to be written. */
void mr__lane_put_back(mr_lane *lane, mr_lane_job *job)
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
        mr__lane_put_back(lane, job); /* as it was made: to be given back */
    }
}

/* The handler's thread has the job as long as it hangs, so another stands in for it. Whichever of
 * the two is written first counts: the other comes too late. */
void mr__lane_disown(mr_lane *lane, mr_lane_job *job)
{
    if (job->disowned)
        return;
    mr_lane_job *stand_in = make_job(lane, job->job.jobs, (size_t)job->job.row.row);
    if (stand_in == NULL)
        return; /* the next heartbeat tries again */
    lane->active--;
    job->disowned = true;
    MR_AUTO_BUF text = {0};
    mr__job_overrun(&stand_in->job, &text);
    mr__buf_puts(&text, "; its handler did not give up when it was told to");
    stand_in->job.message = mr__buf_take(&text);
    stand_in->job.outcome.kind = MR_OUTCOME_ERROR;
    stand_in->job.outcome.message = stand_in->job.message;
    mr__lane_put_back(lane, stand_in);
    int none = MR_STOP_NONE;
    (void)atomic_compare_exchange_strong(&job->job.stop, &none, MR_STOP_LOST);
    mr__lane_write(lane);
}
