/* What keeps a queue well: heartbeats for everything that is claimed, and the resetter for what
 * others left behind. */
#include "runtime/conf_queue.h"
#include "runtime/lane.h"
#include "runtime/worker.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    COMMIT_GRACE = 500000, /* microseconds from a commit to the news of it */
    /* Microseconds until who was told to stop must have: a program gets 3 s before it is killed, a
     * statement 5 s before its connection is closed. */
    STOP_GRACE = 6000000,
    ABSENT_LOOK = 2000, /* milliseconds between two looks for workers that are gone */
};

static int64_t now(const mr_lane *lane)
{
    return mr__clock_now(lane->worker->clock);
}

/* ---- Heartbeats ---------------------------------------------------------------------------- */

/* Its handler does not even give up after max_runtime. */
static bool given_up(const mr_lane *lane, mr_lane_job *job)
{
    int64_t started = atomic_load(&job->started);
    int64_t grace = 2 * lane->heartbeat > STOP_GRACE ? 2 * lane->heartbeat : STOP_GRACE;
    return job->state == MR_LANE_RUNNING && job->job.max_runtime >= 0 && started > 0 &&
           now(lane) - started > job->job.max_runtime + grace;
}

static void stop_job(mr_lane_job *job, mr_job_stop why)
{
    int none = MR_STOP_NONE;
    (void)atomic_compare_exchange_strong(&job->job.stop, &none, (int)why);
}

void mr__lane_tell_lost(mr_lane *lane, mr_lane_job *job)
{
    if (job->lost_since == 0 || job->told_lost)
        return;
    job->told_lost = true;
    mr__count(lane->worker, MR_METRIC_JOBS_LOST, 1);
    mr__log(&lane->worker->logger, MR_WARN, "job lost",
            "queue=%s" MR_SEP "job=%s" MR_SEP
            "why=it was reset, deleted or finished by another; its handler was told to stop",
            lane->name, job->job.row.id);
}

/* A job whose handler commits the outcome itself looks lost between that commit and the news of it.
 * When no news comes, it is; its statements have not ended then. */
static void take_loss(mr_lane *lane, mr_lane_job *job)
{
    if (job->lost_since == 0)
        job->lost_since = now(lane);
    if (atomic_load(&job->job.committing) && now(lane) - job->lost_since < COMMIT_GRACE)
        return;
    mr__lane_tell_lost(lane, job);
    stop_job(job, MR_STOP_LOST);
}

/* The server's word on one job. What waits is not begun any more: its handler would be told to stop
 * at once, so mr__job_run() finds it stopped. */
static void take_beat(mr_lane *lane, mr_lane_job *job, const mr_beat *beat)
{
    if (beat->state == MR_BEAT_LOST && job->state <= MR_LANE_RUNNING)
        take_loss(lane, job);
    if (beat->cancel)
        stop_job(job, MR_STOP_CANCEL);
}

static void on_beat(void *user, PGresult **results, mr_error *error)
{
    mr_lane *lane = user;
    size_t count = lane->beat_count;
    if (error == NULL)
        error = mr__queue_heartbeat_take(results[0], lane->beats, count);
    if (error != NULL) {
        /* Nothing is known, so nothing is lost. */
        if (mr_error_code(error) != MR_E_CANCELLED)
            mr__log(&lane->worker->logger, MR_WARN, "heartbeat of jobs failed",
                    "queue=%s" MR_SEP "jobs=%zu" MR_SEP "error=%s", lane->name, count,
                    mr_error_message(error));
        mr_error_free(error);
    } else {
        for (size_t i = 0; i < count; i++)
            if (lane->beating[i] != NULL)
                take_beat(lane, lane->beating[i], &lane->beats[i]);
    }
    lane->beat_count = 0;
}

static bool beat_room(mr_lane *lane)
{
    free(lane->beats);
    free((void *)lane->beating);
    lane->beats = calloc(lane->claimed + 1, sizeof(*lane->beats));
    lane->beating = calloc(lane->claimed + 1, sizeof(*lane->beating));
    return lane->beats != NULL && lane->beating != NULL;
}

static void on_beat_timer(uv_timer_t *timer)
{
    mr_lane *lane = timer->data;
    mr_worker *w = lane->worker;
    if (lane->claimed == 0 || lane->beat_count > 0 || !mr__aconn_up(mr__worker_jobs_conn(w)) ||
        !beat_room(lane))
        return;
    for (mr_lane_job *job = lane->all; job != NULL; job = job->next) {
        if (given_up(lane, job)) {
            mr__lane_disown(lane, job);
            continue;
        }
        lane->beats[lane->beat_count] =
            (mr_beat){.id = job->job.row.id, .fence = job->job.row.fence};
        lane->beating[lane->beat_count++] = job;
    }
    if (lane->beat_count == 0)
        return;
    MR_AUTO_CALL call = {0};
    mr_error *error =
        mr__queue_heartbeat_call(lane->store, lane->identity, lane->beats, lane->beat_count, &call);
    if (error != NULL) {
        mr_error_free(error); /* only memory can be short; the next one comes soon */
        lane->beat_count = 0;
        return;
    }
    mr_flight_statement statement = {.sql = call.sql, .count = call.count};
    memcpy(statement.values, call.values, (size_t)call.count * sizeof(statement.values[0]));
    mr__aconn_send(mr__worker_jobs_conn(w), &statement, 1, on_beat, lane);
}

/* ---- The resetter -------------------------------------------------------------------------- */

static void look_for_stalled(mr_lane *lane);

static void tell_reset(mr_lane *lane, const mr_reset *reset)
{
    if (strcmp(reset->state, "released") == 0) {
        mr__log(&lane->worker->logger, MR_WARN, "job given back",
                "queue=%s" MR_SEP "job=%s" MR_SEP "why=the answer to its claim was lost",
                lane->name, reset->id);
        return;
    }
    if (strcmp(reset->state, "canceled") == 0) {
        mr__log(&lane->worker->logger, MR_INFO, "job canceled",
                "queue=%s" MR_SEP "job=%s" MR_SEP "why=it was asked for, and its worker is gone",
                lane->name, reset->id);
        return;
    }
    bool queued = strcmp(reset->state, "queued") == 0;
    mr__count(lane->worker, MR_METRIC_JOBS_RESET, 1);
    mr__log(&lane->worker->logger, MR_WARN, queued ? "job reset" : "job gave up",
            "queue=%s" MR_SEP "job=%s" MR_SEP "state=%s" MR_SEP "heartbeat_age_ms=%" PRId64,
            lane->name, reset->id, reset->state, reset->age / 1000);
}

static void on_reset(void *user, PGresult **results, mr_error *error)
{
    mr_lane *lane = user;
    mr_worker *w = lane->worker;
    lane->resetting = false;
    mr__lane_claims_told(lane, MR_TOLD_BY_RESET, error == NULL);
    mr_resets resets = {0};
    if (error == NULL) {
        PGresult *rows = results[0];
        results[0] = NULL;
        error = mr__queue_reset_take(lane->store, rows, &lane->mark, &lane->care, &resets);
    }
    if (error != NULL) {
        if (mr_error_code(error) != MR_E_CANCELLED)
            mr__log(&w->logger, MR_WARN, "reset of stalled jobs failed",
                    "queue=%s" MR_SEP "error=%s", lane->name, mr_error_message(error));
        mr_error_free(error);
        return;
    }
    lane->resetter = false; /* the lock was given back behind it */
    for (size_t i = 0; i < resets.count; i++) {
        tell_reset(lane, &resets.rows[i]);
        if (resets.rows[i].key != NULL && strcmp(resets.rows[i].state, "queued") != 0 &&
            strcmp(resets.rows[i].state, "released") != 0)
            mr__lane_key(lane, resets.rows[i].key);
    }
    mr__lane_promote(lane);
    bool more = resets.more, any = resets.count > 0;
    mr__resets_free(&resets);
    if (w->life != MR_LIFE_RUNNING)
        return;
    if (any)
        mr__lane_look(lane);
    if (more)
        look_for_stalled(lane);
}

static void send_reset(mr_lane *lane)
{
    MR_AUTO_CALL call = {0};
    MR_AUTO_BUF known = {0};
    MR_AUTO_BUF spent = {0};
    mr__lane_claims_put(lane, MR_TOLD_BY_RESET, &spent, &known);
    /* The mark is a guess at which claims are still to come: one that took very long to commit may
     * be below it. Looked for as often as a lease may take anyway. */
    mr_reset_care care = lane->care;
    if (now(lane) - lane->care_whole >= mr__queue_policy_of(lane->spec).stalled_max_age) {
        lane->care_whole = now(lane);
        care.lowest = NULL;
    }
    const mr_own_claims own = {.worker = lane->identity,
                               .known = mr__buf_text(&known),
                               .spent = mr__buf_text(&spent),
                               .below = mr__lane_claims_below(lane)};
    mr_error *error = known.failed || spent.failed
                          ? mr__error_nomem()
                          : mr__queue_reset_call(lane->store, &care, &own, &call);
    if (error != NULL) {
        mr__lane_claims_told(lane, MR_TOLD_BY_RESET, false);
        mr_error_free(error); /* only memory can be short; the next one comes soon */
        return;
    }
    mr_flight_statement flight[] = {
        {.sql = call.sql, .count = call.count},
        {.sql = "SELECT pg_catalog.pg_advisory_unlock($1::int8)",
         .count = 1,
         .values = {lane->reset_lock}},
    };
    memcpy(flight[0].values, call.values, (size_t)call.count * sizeof(flight[0].values[0]));
    lane->resetting = true;
    mr__aconn_send(mr__worker_jobs_conn(lane->worker), flight, lane->resetter ? 2 : 1, on_reset,
                   lane);
}

static void on_lock(void *user, PGresult **results, mr_error *error)
{
    mr_lane *lane = user;
    lane->resetting = false;
    lane->resetter = error == NULL && PQgetvalue(results[0], 0, 0)[0] == 't';
    mr_error_free(error);
    if (lane->resetter && lane->worker->life == MR_LIFE_RUNNING)
        send_reset(lane);
}

/* Whoever wins the lock does it, and gives the lock back: were it kept for the session's life, a
 * process that is stopped would keep everybody from the jobs of its own. Through a transaction
 * pooler there are no sessions, and everybody may: rows that another resetter has locked are left
 * to it. */
static void look_for_stalled(mr_lane *lane)
{
    mr_worker *w = lane->worker;
    if (w->life != MR_LIFE_RUNNING || lane->resetting || !mr__aconn_up(mr__worker_jobs_conn(w)))
        return;
    bool sessions = mr__bag_number(&w->conf->bag, MR_OPT_LEADER_STRATEGY) != 1;
    if (lane->builtin || lane->resetter || !sessions) { /* reset_jobs() has a lock of its own */
        send_reset(lane);
        return;
    }
    mr_flight_statement lock = {.sql = "SELECT pg_catalog.pg_try_advisory_lock($1::int8)",
                                .count = 1,
                                .values = {lane->reset_lock}};
    lane->resetting = true;
    mr__aconn_send(mr__worker_jobs_conn(w), &lock, 1, on_lock, lane);
}

static void on_reset_timer(uv_timer_t *timer)
{
    look_for_stalled(timer->data);
}

void mr__lane_care_start(mr_lane *lane)
{
    uint64_t beat = (uint64_t)(lane->heartbeat / 1000),
             reset = (uint64_t)(lane->reset_interval / 1000);
    /* It also tells by their locks which workers are gone, at the second look. */
    if (lane->builtin && reset > ABSENT_LOOK)
        reset = ABSENT_LOOK;
    (void)uv_timer_start(&lane->beat, on_beat_timer, beat, beat);
    (void)uv_timer_start(&lane->reset, on_reset_timer, 0, reset);
}
