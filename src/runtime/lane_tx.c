/* mode: transaction: a batch of short jobs is taken, run and finished in one transaction on one
 * connection. Nothing is leased; when the process dies the server rolls back, and nothing happened.
 *
 * A task with the executors is one batch. While batches come back full, as many tasks as there are
 * handlers are under way; when one comes back short, a single one looks again later. While there is
 * nothing at all, one statement on the loop's connection asks, instead of a transaction. */
#include "runtime/lane.h"
#include "runtime/worker.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { TROUBLE_FIRST = 100000, TROUBLE_MOST = 5000000 };

typedef struct batch_task {
    mr_task task;
    mr_lane *lane;
    int wanted;
    mr_scan scan;
    mr_job *jobs;
    size_t count;
    bool checked; /* each job's deferred constraints are, by itself */
    bool committed, refused;
    mr_error *error;
} batch_task;

/* ---- On an executor's thread ----------------------------------------------------------------- */

static mr_error *open_session(void *user, mr_session **session)
{
    return mr__seat_session(user, session);
}

/* Copies of what the loop may change meanwhile. */
static mr_error *copy_start(mr_lane *lane, mr_mark *mark, char **buckets, mr_scan *scan)
{
    mr_error *error = NULL;
    (void)pthread_mutex_lock(&lane->lock);
    *scan = mr__mark_plan(&lane->mark, mr__clock_now(lane->worker->clock));
    mr__mark_init(mark, lane->mark.keys, lane->mark.interval);
    for (int i = 0; i < lane->mark.keys && lane->mark.key[i] != NULL; i++) {
        mark->key[i] = strdup(lane->mark.key[i]);
        if (mark->key[i] == NULL)
            error = mr__error_nomem();
    }
    if (error == NULL && lane->buckets != NULL) {
        *buckets = strdup(lane->buckets);
        if (*buckets == NULL)
            error = mr__error_nomem();
    }
    (void)pthread_mutex_unlock(&lane->lock);
    return error;
}

static mr_error *take(batch_task *t, mr_tx *tx, mr_jobs **out)
{
    mr_lane *lane = t->lane;
    const mr_clock *clock = lane->worker->clock;
    mr_mark mark = {0};
    char *buckets = NULL;
    PGresult *rows = NULL;
    int64_t start = mr__clock_now(clock);
    MR_AUTO_CALL call = {0};
    mr_error *error = copy_start(lane, &mark, &buckets, &t->scan);
    mr_claim claim = {
        .count = t->wanted, .worker = lane->identity, .buckets = buckets, .take = true};
    if (error == NULL)
        error = mr__queue_claim_call(lane->store, &claim, &mark, t->scan, &call);
    if (error == NULL)
        error = mr__queue_run((mr_queue_on){.tx = tx}, &call, &rows);
    free(buckets);
    mr__mark_free(&mark);
    MR_TRY(error);
    int64_t now = mr__clock_now(clock);
    mr_mark_news news = {.scan = t->scan, .wanted = t->wanted, .now = now, .took = now - start};
    (void)pthread_mutex_lock(&lane->lock);
    error = mr__queue_claim_take(lane->store, rows, &lane->mark, news, out);
    (void)pthread_mutex_unlock(&lane->lock);
    return error;
}

static mr_error *make_jobs(batch_task *t, mr_jobs *jobs)
{
    size_t count = mr__jobs_count(jobs);
    t->jobs = calloc(count + 1, sizeof(*t->jobs));
    if (t->jobs == NULL)
        return mr__error_nomem();
    for (; t->count < count; t->count++) {
        mr__lane_job_init(t->lane, jobs, t->count, &t->jobs[t->count]);
        t->jobs[t->count].checked = t->checked;
    }
    return NULL;
}

static mr_error *finish(batch_task *t, mr_tx *tx)
{
    mr_outcome *outcomes = calloc(t->count + 1, sizeof(*outcomes));
    if (outcomes == NULL)
        return mr__error_nomem();
    for (size_t i = 0; i < t->count; i++)
        outcomes[i] = t->jobs[i].outcome;
    mr__tx_tag(tx, -1);
    mr_error *error =
        mr__queue_finish_taken(tx, t->lane->store, t->lane->identity, outcomes, t->count);
    free(outcomes);
    return error;
}

/* From the taking to the last outcome; not the commit. */
static mr_error *fill(batch_task *t, mr_tx *tx, mr_seat *seat)
{
    mr_jobs *jobs = NULL;
    MR_TRY(take(t, tx, &jobs));
    mr_error *error = mr__jobs_count(jobs) == 0 ? NULL : make_jobs(t, jobs);
    mr__jobs_unref(jobs); /* each job has its own reference */
    MR_TRY(error);
    if (t->count == 0)
        return NULL;
    MR_TRY(mr__jobs_run_shared(tx, t->jobs, t->count, open_session, seat));
    return finish(t, tx);
}

static mr_error *run(batch_task *t, mr_seat *seat)
{
    mr_session *session = NULL;
    MR_TRY(mr__seat_session(seat, &session));
    mr_tx *tx = NULL;
    MR_TRY(mr__tx_begin(session, INT64_MAX, &tx));
    mr_error *error = fill(t, tx, seat);
    if (error != NULL || t->count == 0) {
        mr_error *ended = mr__tx_rollback(tx, NULL);
        if (error == NULL)
            return ended;
        mr_error_free(ended);
        return error;
    }
    int tag = -1;
    error = mr__tx_commit(tx, &tag);
    t->committed = error == NULL;
    /* Something was put off to the commit, and nobody can tell whose it was. */
    t->refused = tag < 0 && mr_error_sqlstate(error)[0] != '\0' && !mr_error_retryable(error);
    return error;
}

/* What the hook after the handler is told: the batch's error when nothing was committed, else the
 * job's own. The caller's. */
static mr_error *error_of(const batch_task *t, const mr_job *job)
{
    if (t->error != NULL)
        return mr__error_copy(t->error);
    mr_outcome_kind kind = job->outcome.kind;
    if (kind != MR_OUTCOME_ERROR && kind != MR_OUTCOME_FAIL && kind != MR_OUTCOME_CANCEL)
        return NULL;
    return mr_error_new(MR_E_HANDLER, kind == MR_OUTCOME_ERROR, "%s",
                        job->message == NULL ? "" : job->message);
}

static void run_batch(mr_task *task, mr_seat *seat)
{
    batch_task *t = (batch_task *)task;
    t->error = run(t, seat);
    for (size_t i = 0; i < t->count; i++) {
        mr_job *job = &t->jobs[i];
        if (job->hooks.after == NULL || !job->ran)
            continue;
        MR_AUTO_ERROR error = error_of(t, job);
        job->hooks.after(job, error, job->hooks.user);
    }
}

/* ---- On the loop ----------------------------------------------------------------------------- */

static void free_task(batch_task *t)
{
    for (size_t i = 0; i < t->count; i++)
        mr__job_clear(&t->jobs[i]);
    free(t->jobs);
    mr_error_free(t->error);
    free(t);
}

static void done(mr_task *task);

static void drop_batch(mr_task *task)
{
    free_task((batch_task *)task);
}

static void failed(mr_lane *lane, batch_task *t)
{
    mr_worker *w = lane->worker;
    lane->troubles++;
    int64_t wait = mr__jitter(mr__policy_wait(TROUBLE_FIRST, TROUBLE_MOST, lane->troubles));
    if (mr_error_code(t->error) != MR_E_CANCELLED)
        mr__log(&w->logger, MR_WARN, "batch of jobs rolled back",
                "queue=%s" MR_SEP "jobs=%zu" MR_SEP "error=%s" MR_SEP "retry_ms=%" PRId64,
                lane->name, t->count, mr_error_message(t->error), wait / 1000);
    mr_error_free(lane->last_error);
    lane->last_error = mr__error_copy(t->error);
    if (mr_error_code(t->error) == MR_E_FATAL)
        mr__worker_fail(w, mr__error_prefix(mr__error_copy(t->error), "queue '%s'", lane->name));
    mr__lane_despair(lane, lane->troubles, t->error);
    if (t->refused && !t->checked) {
        lane->checked = true;
        mr__lane_look_in(lane, 0);
        return;
    }
    lane->rest_until = mr__clock_now(w->clock) + wait;
    mr__lane_look_in(lane, wait);
}

/* A deadlock, say: it cost the job nothing. */
static void tell_stepped_back(mr_lane *lane, const mr_job *job)
{
    if (job->trouble != NULL)
        mr__log(&lane->worker->logger, MR_WARN, "job given back",
                "queue=%s" MR_SEP "job=%s" MR_SEP "error=%s", lane->name, job->row.id,
                mr_error_message(job->trouble));
}

static void succeeded(mr_lane *lane, batch_task *t)
{
    bool back = false;
    lane->troubles = 0;
    lane->total += (int64_t)t->count;
    mr__count(lane->worker, MR_METRIC_JOBS_CLAIMED, (int64_t)t->count);
    for (size_t i = 0; i < t->count; i++) {
        mr__lane_count(lane, &t->jobs[i], "");
        tell_stepped_back(lane, &t->jobs[i]);
        mr__lane_key_of(lane, &t->jobs[i], "");
        back = back || t->jobs[i].outcome.kind != MR_OUTCOME_COMPLETE;
    }
    if (back) {
        (void)pthread_mutex_lock(&lane->lock);
        mr__mark_stir(&lane->mark);
        (void)pthread_mutex_unlock(&lane->lock);
    }
    mr__lane_promote(lane);
    lane->empty = t->count == 0 && t->scan == MR_SCAN_ALL && lane->handlers == 0;
    lane->idle = t->count == 0;
}

/* Returns false when there is nothing more to be taken, or no memory. */
static bool submit(mr_lane *lane)
{
    int64_t wanted = lane->batch_size;
    if (lane->max_total >= 0) {
        int64_t left = lane->max_total - lane->total - lane->handlers * lane->batch_size;
        wanted = left < wanted ? left : wanted;
    }
    batch_task *t = wanted <= 0 ? NULL : calloc(1, sizeof(*t));
    if (t == NULL)
        return false;
    *t = (batch_task){.task = {.run = run_batch, .done = done, .drop = drop_batch},
                      .lane = lane,
                      .checked = lane->checked,
                      .wanted = (int)wanted};
    lane->claim_sent = mr__clock_now(lane->worker->clock);
    lane->handlers++;
    lane->worker->running++;
    mr__executors_submit(lane->worker->executors, &t->task);
    return true;
}

static void done(mr_task *task)
{
    batch_task *t = (batch_task *)task;
    mr_lane *lane = t->lane;
    lane->handlers--;
    bool full = t->committed && t->count >= (size_t)t->wanted;
    bool once = mr__bag_number(&lane->worker->conf->bag, MR_OPT_ONCE) != 0;
    if (t->error != NULL) {
        failed(lane, t);
    } else {
        succeeded(lane, t);
        if (t->count == 0 && t->scan == MR_SCAN_MARK && once && mr__lane_resting(lane)) {
            (void)pthread_mutex_lock(&lane->lock);
            mr__mark_stir(&lane->mark); /* the end is known only by a look at everything */
            (void)pthread_mutex_unlock(&lane->lock);
        }
        if (full)
            mr__lane_look(lane);
        else if (lane->handlers == 0)
            mr__lane_look_in(lane, once && !lane->empty ? 0
                                   : t->count > 0       ? lane->interval / 8
                                                        : lane->interval);
        lane->eager = full;
    }
    free_task(t);
    mr__dispatch_settle(lane->worker);
}

/* ---- While nothing is there ------------------------------------------------------------------ */

static void asked(void *user, PGresult **results, mr_error *error)
{
    mr_lane *lane = user;
    mr_worker *w = lane->worker;
    lane->claiming = false;
    mr__queue_call_free(&lane->claim);
    lane->claim = (mr_queue_call){0};
    lane->idle = error == NULL && PQntuples(results[0]) == 0; /* an error is the batch's to tell */
    mr_error_free(error);
    if (w->life != MR_LIFE_RUNNING) {
        mr__worker_settle_stop(w);
        return;
    }
    if (!lane->idle) {
        mr__lane_look(lane);
        return;
    }
    int64_t now = mr__clock_now(w->clock);
    mr_mark_news news = {
        .scan = lane->scan, .wanted = 1, .now = now, .took = now - lane->claim_sent};
    (void)pthread_mutex_lock(&lane->lock);
    mr_error_free(mr__mark_claimed(&lane->mark, &news));
    (void)pthread_mutex_unlock(&lane->lock);
    int64_t wait = lane->interval;
    mr__lane_look_in(lane, wait - wait / 10 + mr__random_upto(wait / 5));
}

/* What it locks it lets go at once. Returns false when it cannot ask. */
static bool ask(mr_lane *lane)
{
    mr_claim claim = {.count = 1, .worker = lane->identity, .buckets = lane->buckets, .take = true};
    lane->claim_sent = mr__clock_now(lane->worker->clock);
    (void)pthread_mutex_lock(&lane->lock);
    lane->scan = mr__mark_plan(&lane->mark, lane->claim_sent);
    mr_error *error =
        mr__queue_claim_call(lane->store, &claim, &lane->mark, lane->scan, &lane->claim);
    (void)pthread_mutex_unlock(&lane->lock);
    if (error != NULL) {
        mr_error_free(error);
        mr__queue_call_free(&lane->claim);
        lane->claim = (mr_queue_call){0};
        return false;
    }
    mr_flight_statement statement = {.sql = lane->claim.sql, .count = lane->claim.count};
    memcpy(statement.values, lane->claim.values,
           (size_t)lane->claim.count * sizeof(statement.values[0]));
    lane->claiming = true;
    mr__aconn_send(mr__worker_jobs_conn(lane->worker), &statement, 1, asked, lane);
    return true;
}

void mr__lane_tx_feed(mr_lane *lane)
{
    bool once = mr__bag_number(&lane->worker->conf->bag, MR_OPT_ONCE) != 0;
    if (lane->idle && lane->handlers == 0 && !once && ask(lane))
        return;
    do {
        if (lane->handlers >= lane->num_handlers || !submit(lane))
            return;
    } while (lane->eager);
}
