/* A queue whose jobs share a budget: videos are rendered, each takes as many of the machine's
 * memory units as its column `units` says, and together they never take more than there are.
 *
 *   budget URI [JOBS]     ends after JOBS jobs, else on SIGINT or SIGTERM
 *
 * Three hooks make it up. Before each claim the free units become a condition of it, so that a job
 * too large for now stays in the table, where another process may have room for it. Before the
 * handler the units are taken, after it, whatever came of it, they are given back. Between a claim
 * and its handler somebody else may have taken them: such a job is put back as it was. */
#include <millrace/millrace.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char table[] =
    "CREATE TABLE IF NOT EXISTS videos ("
    " id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, units integer NOT NULL,"
    " state text NOT NULL DEFAULT 'queued', failure_message text,"
    " queued_at timestamptz NOT NULL DEFAULT now(), started_at timestamptz,"
    " finished_at timestamptz, process_after timestamptz, num_resets integer NOT NULL DEFAULT 0,"
    " num_failures integer NOT NULL DEFAULT 0, last_heartbeat_at timestamptz,"
    " execution_logs json[], worker_hostname text NOT NULL DEFAULT '',"
    " cancel boolean NOT NULL DEFAULT false, lease_generation bigint NOT NULL DEFAULT 0);"
    "CREATE INDEX IF NOT EXISTS videos_waiting ON videos (id)"
    " WHERE state IN ('queued', 'errored');"
    "CREATE INDEX IF NOT EXISTS videos_running ON videos (id) WHERE state = 'processing'";

/* Hooks and handlers run on several threads. */
typedef struct budget {
    pthread_mutex_t mutex;
    int total, used, highest;
} budget;

static mr_worker *volatile the_worker; /* for the signal handler */

static void on_signal(int number)
{
    (void)number;
    if (the_worker != NULL)
        mr_worker_stop(the_worker);
}

static int units_of(const mr_job *job)
{
    const char *units = mr_job_value(job, "units");
    return units == NULL ? 0 : (int)strtol(units, NULL, 10);
}

static bool take(budget *b, int units)
{
    (void)pthread_mutex_lock(&b->mutex);
    bool enough = b->used + units <= b->total;
    if (enough)
        b->used += units;
    if (b->used > b->highest)
        b->highest = b->used;
    (void)pthread_mutex_unlock(&b->mutex);
    return enough;
}

static void give_back(budget *b, int units)
{
    (void)pthread_mutex_lock(&b->mutex);
    b->used -= units;
    (void)pthread_mutex_unlock(&b->mutex);
}

/* ---- The hooks ------------------------------------------------------------------------------- */

static mr_error *before_claim(mr_dequeue *ask, void *user)
{
    budget *b = user;
    (void)pthread_mutex_lock(&b->mutex);
    int left = b->total - b->used;
    (void)pthread_mutex_unlock(&b->mutex);
    if (left <= 0) {
        mr_dequeue_refuse(ask);
        return NULL;
    }
    mr_dequeue_limit(ask, 1); /* several would fit each, but perhaps not together */
    char text[16];
    (void)snprintf(text, sizeof(text), "%d", left);
    const char *values[] = {text};
    return mr_dequeue_where(ask, "units <= $1::int", 1, values);
}

/* What a job has taken is remembered by its thread: hooks and handler run on the same one. */
static _Thread_local int taken;

static mr_error *before(mr_job *job, void *user)
{
    int units = units_of(job);
    taken = take(user, units) ? units : -1;
    return NULL;
}

static void after(mr_job *job, const mr_error *error, void *user)
{
    (void)job;
    (void)error;
    if (taken > 0)
        give_back(user, taken);
    taken = 0;
}

static mr_error *render(mr_job *job, void *user)
{
    (void)user;
    if (taken < 0) {
        mr_job_snooze(job, 100); /* milliseconds; counts as nothing */
        return NULL;
    }
    /* Here the work would be done; ask mr_job_cancelled() now and then. */
    return mr_job_log(job, "{\"step\": \"rendered\"}", NULL);
}

/* ---- The program ----------------------------------------------------------------------------- */

static mr_error *configure(mr_conf *conf, const char *uri, const char *jobs, budget *b)
{
    mr_queue *queue = mr_queue_new("videos");
    mr_error *error = mr_conf_set(conf, "database", uri);
    if (error == NULL)
        error = mr_queue_set(queue, "table", "videos");
    if (error == NULL)
        error = mr_queue_set(queue, "num_handlers", "4");
    if (error == NULL)
        error = mr_queue_set(queue, "interval", "100ms");
    if (error == NULL && jobs != NULL)
        error = mr_queue_set(queue, "max_total_jobs", jobs);
    if (error != NULL) {
        mr_queue_free(queue);
        return error;
    }
    mr_queue_on_job(queue, render, b, NULL);
    mr_queue_on_handle(queue, before, after, b);
    mr_queue_on_dequeue(queue, before_claim, b);
    return mr_conf_take_queue(conf, queue); /* the conf owns it from here on */
}

/* Millrace's schema, if it is not there yet, and the table. */
static mr_error *set_up(const char *uri, const mr_conf *conf)
{
    PGconn *conn = NULL;
    mr_error *error = mr_connect(uri, "budget", &conn);
    if (error != NULL)
        return error;
    error = mr_schema_apply(conn, conf, NULL);
    if (error == NULL) {
        PGresult *result = PQexec(conn, table);
        error = mr_error_from_result(conn, result);
        PQclear(result);
    }
    PQfinish(conn);
    return error;
}

static mr_error *run(const char *uri, const char *jobs, budget *b)
{
    mr_conf *conf = mr_conf_new();
    mr_worker *worker = NULL;
    mr_error *error = configure(conf, uri, jobs, b);
    if (error == NULL)
        error = set_up(uri, conf);
    if (error == NULL)
        error = mr_worker_new(conf, &worker);
    if (error != NULL) {
        mr_conf_free(conf); /* a worker that was made owns the conf; here there is none */
        return error;
    }
    the_worker = worker;
    error = mr_worker_run(worker);
    the_worker = NULL;
    mr_worker_free(worker);
    return error;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        (void)fprintf(stderr, "usage: budget URI [JOBS]\n");
        return 2;
    }
    struct sigaction action = {.sa_handler = on_signal};
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    budget b = {.mutex = PTHREAD_MUTEX_INITIALIZER, .total = 10};
    mr_error *error = run(argv[1], argc > 2 ? argv[2] : NULL, &b);
    if (error != NULL)
        (void)fprintf(stderr, "budget: %s\n", mr_error_message(error));
    else
        (void)printf("never more than %d of %d units in use\n", b.highest, b.total);
    int status = error == NULL ? 0 : 1;
    mr_error_free(error);
    return status;
}
