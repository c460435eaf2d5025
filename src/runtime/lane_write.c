/* What became of a queue's jobs goes to the database, many in one statement.
 *
 * On the loop's connection; while claims keep that busy and a thread of the executors is free, on
 * that thread's, so that the server claims and finishes side by side. */
#include "runtime/lane.h"
#include "runtime/worker.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    WRITE_LEAST = 100, /* while handlers are busy so many are waited for, … */
    LINGER = 5,        /* … at most so many milliseconds: a statement a job would be dear */
    TROUBLE_WAIT = 500000,
    WRITE_ITSELF = 1,         /* which statement of the flight is the outcomes' */
    LOCKED_WAIT = 50,         /* milliseconds before a row that was locked is tried again */
    WRITE_DEADLINE = 30000000 /* microseconds on an executor's connection */
};

static void on_write_timer(uv_timer_t *timer)
{
    mr__lane_write(timer->data);
}

/* Outcomes gather while handlers are busy, and are written at once when nothing else is going on.
 */
void mr__lane_write_soon(mr_lane *lane)
{
    if (lane->active == 0 || lane->unwritten.count >= WRITE_LEAST)
        mr__lane_write(lane);
    else if (lane->unwritten.count > 0 && uv_is_active((uv_handle_t *)&lane->later) == 0)
        (void)uv_timer_start(&lane->later, on_write_timer, LINGER, 0);
}

/* False when the row is in somebody's hands just now. */
static bool wrote_one(mr_lane *lane, mr_lane_job *job, const mr_outcome *outcome)
{
    if (outcome->locked) {
        job->locked = true;
        mr__lane_put_back(lane, job);
        return false;
    }
    if (outcome->became[0] == '\0')
        mr__lane_late(lane, job);
    else
        mr__lane_count(lane, &job->job, outcome->became);
    mr__lane_key_of(lane, &job->job, outcome->became);
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
        mr__lane_abandon(lane, job);
        return;
    }
    free(job->job.message);
    job->job.message = strdup(mr_error_message(error));
    job->job.outcome = (mr_outcome){.id = job->job.row.id,
                                    .fence = job->job.row.fence,
                                    .kind = MR_OUTCOME_FAIL,
                                    .message = job->job.message};
    mr__lane_put_back(lane, job);
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
            /* Only then is it possible that it was written after all. */
            lane->writing[i]->again =
                lane->writing[i]->again || mr_error_code(error) == MR_E_CONNECT;
            mr__lane_put_back(lane, lane->writing[i]);
        }
        if (refused)
            lane->write_most = count / 2;
    }
    mr_error_free(error);
    int64_t wait = refused ? LOCKED_WAIT : mr__jitter(TROUBLE_WAIT) / 1000;
    (void)uv_timer_start(&lane->later, on_write_timer, (uint64_t)wait, 0);
}

static void written(mr_lane *lane, const PGresult *rows, mr_error *error)
{
    mr_worker *w = lane->worker;
    size_t count = lane->writing_count;
    if (error == NULL)
        error = mr__queue_finish_take(rows, lane->outcomes, count, &lane->mark, NULL);
    if (strcmp(mr_error_sqlstate(error), "55P03") == 0 && !lane->free_only) {
        /* Somebody has one of the rows locked: the others are written, that one is waited for. */
        mr_error_free(error);
        lane->free_only = true;
        for (size_t i = 0; i < count; i++)
            mr__lane_put_back(lane, lane->writing[i]);
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
    mr__lane_promote(lane);
    if (all)
        mr__lane_write_soon(lane);
    else
        (void)uv_timer_start(&lane->later, on_write_timer, LOCKED_WAIT, 0);
    mr__lane_look(lane);
    if (w->life == MR_LIFE_STOPPING)
        mr__worker_settle_stop(w);
    else
        mr__dispatch_settle(w);
}

static void on_written(void *user, PGresult **results, mr_error *error)
{
    written(user, error == NULL ? results[WRITE_ITSELF] : NULL, error);
}

static void on_written_pooled(void *user, PGresult **results, mr_error *error)
{
    written(user, error == NULL ? results[0] : NULL, error);
}

/* ---- On an executor's connection ----------------------------------------------------------- */

typedef struct write_task {
    mr_task task;
    mr_lane *lane;
    mr_queue_call call;
    PGresult *rows;
    mr_error *error;
} write_task;

static mr_error *write_rows(write_task *t, mr_seat *seat)
{
    mr_session *session = NULL;
    MR_TRY(mr__seat_session(seat, &session));
    mr_tx *tx = NULL;
    MR_TRY(mr__tx_begin(session, mr__clock_now(t->lane->worker->clock) + WRITE_DEADLINE, &tx));
    mr_error *error = mr_tx_exec(tx, "SET LOCAL lock_timeout = '250ms'", 0, NULL);
    if (error == NULL)
        error = mr_tx_query(tx, t->call.sql, t->call.count, t->call.values, &t->rows);
    int tag = -1;
    if (error == NULL)
        return mr__tx_commit(tx, &tag);
    mr_error *server = mr__tx_rollback(tx, &tag);
    if (server == NULL)
        return error;
    mr_error_free(error);
    return server;
}

static void run_write(mr_task *task, mr_seat *seat)
{
    write_task *t = (write_task *)task;
    t->error = write_rows(t, seat);
}

static void free_write(mr_task *task)
{
    write_task *t = (write_task *)task;
    mr__queue_call_free(&t->call);
    PQclear(t->rows);
    mr_error_free(t->error);
    free(t);
}

static void write_done(mr_task *task)
{
    write_task *t = (write_task *)task;
    mr_error *error = t->error;
    t->error = NULL;
    written(t->lane, t->rows, error);
    free_write(task);
}

/* True when a thread has it. Takes the call then. */
static bool hand_over(mr_lane *lane, mr_queue_call *call)
{
    mr_worker *w = lane->worker;
    if (lane->writing_count < WRITE_LEAST || !mr__executors_spare(w->executors))
        return false;
    write_task *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return false;
    *t = (write_task){.task = {.run = run_write, .done = write_done, .drop = free_write},
                      .lane = lane};
    t->call = *call;
    *call = (mr_queue_call){0};
    w->running++;
    mr__executors_submit(w->executors, &t->task);
    return true;
}

/* ---- Sending --------------------------------------------------------------------------------- */

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
    bool free_only = lane->free_only || pooled(w);
    while (lane->writing_count < lane->write_most &&
           (job = mr__lane_line_take(&lane->unwritten)) != NULL) {
        free_only = free_only || job->locked;
        job->state = MR_LANE_WRITING;
        lane->outcomes[lane->writing_count] = job->job.outcome;
        lane->writing[lane->writing_count++] = job;
    }
    MR_AUTO_CALL call = {0};
    mr_error *error = mr__queue_finish_call(lane->store, lane->identity, lane->outcomes,
                                            lane->writing_count, free_only, &call);
    if (error != NULL) {
        write_failed(lane, error); /* only memory can be short */
        return;
    }
    if (!free_only && hand_over(lane, &call))
        return;
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
