/* A worker in a thread of the test, with one queue. */
#include "lane_fixture.h"

#include <stdio.h>
#include <unistd.h>

#define TABLE                                                                                      \
    "CREATE TABLE work (id bigserial PRIMARY KEY, state text NOT NULL DEFAULT 'queued',"           \
    " failure_message text, created_at timestamptz NOT NULL DEFAULT now(), started_at "            \
    "timestamptz,"                                                                                 \
    " finished_at timestamptz, process_after timestamptz, num_resets int NOT NULL DEFAULT 0,"      \
    " num_failures int NOT NULL DEFAULT 0, last_heartbeat_at timestamptz,"                         \
    " execution_logs json[], worker_hostname text NOT NULL DEFAULT '', cancel bool NOT NULL"       \
    " DEFAULT false, lease_generation bigint NOT NULL DEFAULT 0, what text);"                      \
    "CREATE INDEX ON work (id) WHERE state IN ('queued', 'errored');"                              \
    "CREATE INDEX ON work (id) WHERE state = 'processing';"                                        \
    "CREATE TABLE effects (n bigserial PRIMARY KEY, job bigint)"

int lane_setup(void **state)
{
    if (scratch_setup(state) != 0)
        return -1;
    scratch *s = *state;
    mr_conf *conf = mr_conf_new();
    assert_ok(mr_conf_set(conf, "no_log", "true")); /* queues alone need no log */
    assert_ok(mr_schema_apply(s->conn, conf, NULL));
    mr_conf_free(conf);
    run(s->conn, TABLE);
    return 0;
}

void add_jobs(PGconn *conn, int count)
{
    char sql[120];
    (void)snprintf(sql, sizeof(sql),
                   "INSERT INTO work (what) SELECT 'w' || n FROM"
                   " generate_series(1, %d) n",
                   count);
    run(conn, sql);
}

int64_t in_state(PGconn *conn, const char *state)
{
    char sql[120];
    (void)snprintf(sql, sizeof(sql), "SELECT count(*) FROM work WHERE state = '%s'", state);
    return number(conn, sql);
}

void await(PGconn *conn, const char *sql, int64_t wanted)
{
    for (int i = 0; i < 3000; i++) {
        if (number(conn, sql) == wanted)
            return;
        (void)usleep(10000);
    }
    fail_msg("waited for %s to give %lld", sql, (long long)wanted);
}

void await_count(const atomic_int *number, int wanted)
{
    for (int i = 0; i < 3000; i++) {
        if (atomic_load(number) >= wanted)
            return;
        (void)usleep(10000);
    }
    fail_msg("waited for %d, it is %d", wanted, atomic_load(number));
}

/* ---- A worker in a thread ------------------------------------------------------------------ */

static void *run_worker(void *argument)
{
    running *r = argument;
    r->error = mr_worker_run(r->worker);
    return NULL;
}

mr_conf *conf_for(const scratch *s)
{
    mr_conf *conf = mr_conf_new();
    assert_ok(mr_conf_set(conf, "database", scratch_conninfo(s)));
    return conf;
}

void start(running *r, mr_conf *conf, mr_queue *queue)
{
    assert_ok(mr_conf_take_queue(conf, queue));
    r->error = NULL;
    assert_ok(mr_worker_new(conf, &r->worker));
    assert_int_equal(pthread_create(&r->thread, NULL, run_worker, r), 0);
}

void wait_end(running *r)
{
    (void)pthread_join(r->thread, NULL);
    mr_worker_free(r->worker);
    assert_ok(r->error);
}

void stop(running *r)
{
    mr_worker_stop(r->worker);
    wait_end(r);
}

/* ---- Handlers ------------------------------------------------------------------------------ */

static void enter(probe *p)
{
    int inside = atomic_fetch_add(&p->inside, 1) + 1;
    int most = atomic_load(&p->most_inside);
    while (inside > most && !atomic_compare_exchange_weak(&p->most_inside, &most, inside)) {
    }
}

static mr_error *write_effect(mr_job *job)
{
    mr_tx *tx = NULL;
    mr_error *error = mr_job_tx(job, &tx);
    const char *values[] = {mr_job_id(job)};
    return error != NULL ? error
                         : mr_tx_exec(tx, "INSERT INTO effects (job) VALUES ($1)", 1, values);
}

static mr_error *handle(mr_job *job, void *user)
{
    probe *p = user;
    enter(p);
    mr_error *error = NULL;
    if (p->effects)
        error = write_effect(job);
    while (atomic_load(&p->hold) && (atomic_load(&p->deaf) || !mr_job_cancelled(job)))
        (void)usleep(1000);
    if (mr_job_cancelled(job)) { /* its transaction may have heard of it first */
        atomic_fetch_add(&p->cancelled, 1);
        if (error == NULL)
            error = mr_error_new(MR_E_CANCELLED, true, "told to stop");
    }
    if (error == NULL && p->error != NULL)
        error = mr_error_new(MR_E_HANDLER, p->retryable, "%s", p->error);
    atomic_fetch_sub(&p->inside, 1);
    atomic_fetch_add(&p->calls, 1);
    return error;
}

mr_queue *queue_for(probe *p)
{
    mr_queue *queue = mr_queue_new("work");
    mr_queue_on_job(queue, handle, p, NULL);
    static const char *const settings[][2] = {
        {"table", "work"},           {"columns", "queued_at=created_at"},
        {"interval", "20ms"},        {"heartbeat_interval", "50ms"},
        {"reset_interval", "100ms"}, {"stalled_max_age", "30s"}};
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        assert_ok(mr_queue_set(queue, settings[i][0], settings[i][1]));
    return queue;
}
