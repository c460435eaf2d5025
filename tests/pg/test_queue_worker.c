/* Queues in a worker: the reference's scenarios 33 to 45 with real handlers, a real table and a
 * real server; what a stop, a cancel, a lost job and a failed heartbeat do. (46 and 47 are about
 * the reference's set of running ids, which Millrace has as the list of claimed jobs: an id cannot
 * be claimed twice, and nobody lists it.) */
#include "scratch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static int setup(void **state)
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

static void add_jobs(PGconn *conn, int count)
{
    char sql[120];
    (void)snprintf(sql, sizeof(sql),
                   "INSERT INTO work (what) SELECT 'w' || n FROM"
                   " generate_series(1, %d) n",
                   count);
    run(conn, sql);
}

static int64_t in_state(PGconn *conn, const char *state)
{
    char sql[120];
    (void)snprintf(sql, sizeof(sql), "SELECT count(*) FROM work WHERE state = '%s'", state);
    return number(conn, sql);
}

static void await(PGconn *conn, const char *sql, int64_t wanted)
{
    for (int i = 0; i < 3000; i++) {
        if (number(conn, sql) == wanted)
            return;
        (void)usleep(10000);
    }
    fail_msg("waited for %s to give %lld", sql, (long long)wanted);
}

/* ---- A worker in a thread ------------------------------------------------------------------ */

typedef struct running {
    mr_worker *worker;
    pthread_t thread;
    mr_error *error;
} running;

static void *run_worker(void *argument)
{
    running *r = argument;
    r->error = mr_worker_run(r->worker);
    return NULL;
}

static mr_conf *conf_for(const scratch *s)
{
    mr_conf *conf = mr_conf_new();
    assert_ok(mr_conf_set(conf, "database", scratch_conninfo(s)));
    return conf;
}

/* Takes conf and queue. */
static void start(running *r, mr_conf *conf, mr_queue *queue)
{
    assert_ok(mr_conf_take_queue(conf, queue));
    r->error = NULL;
    assert_ok(mr_worker_new(conf, &r->worker));
    assert_int_equal(pthread_create(&r->thread, NULL, run_worker, r), 0);
}

static void wait_end(running *r)
{
    (void)pthread_join(r->thread, NULL);
    mr_worker_free(r->worker);
    assert_ok(r->error);
}

static void stop(running *r)
{
    mr_worker_stop(r->worker);
    wait_end(r);
}

/* ---- Handlers ------------------------------------------------------------------------------ */

typedef struct probe {
    atomic_int calls, inside, most_inside, before, after, asked, cancelled;
    atomic_bool hold; /* handlers wait while it is set */
    bool effects;     /* write one through the job's transaction */
    const char *error;
    bool retryable;
    bool refuse;
} probe;

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
    while (atomic_load(&p->hold) && !mr_job_cancelled(job))
        (void)usleep(1000);
    if (error == NULL && mr_job_cancelled(job)) {
        atomic_fetch_add(&p->cancelled, 1);
        error = mr_error_new(MR_E_CANCELLED, true, "told to stop");
    }
    if (error == NULL && p->error != NULL)
        error = mr_error_new(MR_E_HANDLER, p->retryable, "%s", p->error);
    atomic_fetch_sub(&p->inside, 1);
    atomic_fetch_add(&p->calls, 1);
    return error;
}

static mr_queue *queue_for(probe *p)
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

/* ---- Scenarios ----------------------------------------------------------------------------- */

static void s33_success_completes(void **state)
{
    scratch *s = *state;
    run(s->conn, "INSERT INTO work (id, what) VALUES (42, 'x')");
    probe p = {.effects = true};
    running r;
    start(&r, conf_for(s), queue_for(&p));
    await(s->conn, "SELECT count(*) FROM work WHERE id = 42 AND state = 'completed'", 1);
    stop(&r);
    assert_int_equal(p.calls, 1);
    assert_int_equal(number(s->conn, "SELECT job FROM effects"), 42);
    assert_int_equal(number(s->conn, "SELECT count(*) FROM work WHERE finished_at IS NOT NULL AND"
                                     " started_at IS NOT NULL AND failure_message IS NULL"),
                     1);
}

static void s34_s35_errors(void **state)
{
    scratch *s = *state;
    for (int i = 0; i < 2; i++) {
        run(s->conn, "TRUNCATE work, effects");
        add_jobs(s->conn, 1);
        probe p = {.error = "oops", .retryable = i == 0, .effects = true};
        mr_queue *queue = queue_for(&p);
        assert_ok(mr_queue_set(queue, "retry_after", "1h"));
        running r;
        start(&r, conf_for(s), queue);
        await(s->conn,
              i == 0 ? "SELECT count(*) FROM work WHERE state = 'errored'"
                     : "SELECT count(*) FROM work WHERE state = 'failed'",
              1);
        stop(&r);
        assert_string_equal(value(s->conn, "SELECT failure_message FROM work"), "oops");
        assert_int_equal(number(s->conn, "SELECT num_failures FROM work"), 1);
        assert_int_equal(number(s->conn, "SELECT count(*) FROM effects"), 0);
    }
}

static void s36_never_more_than_num_handlers(void **state)
{
    scratch *s = *state;
    static const int sizes[] = {1, 2, 7, 20, 49};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        run(s->conn, "TRUNCATE work");
        add_jobs(s->conn, 50);
        probe p = {.hold = true};
        char text[16];
        (void)snprintf(text, sizeof(text), "%d", sizes[i]);
        mr_queue *queue = queue_for(&p);
        assert_ok(mr_queue_set(queue, "num_handlers", text));
        running r;
        start(&r, conf_for(s), queue);
        for (int k = 0; k < 3000 && atomic_load(&p.inside) < sizes[i]; k++)
            (void)usleep(10000);
        assert_int_equal(p.inside, sizes[i]);
        assert_int_equal(in_state(s->conn, "processing"), sizes[i]);
        atomic_store(&p.hold, false);
        await(s->conn, "SELECT count(*) FROM work WHERE state = 'completed'", 50);
        stop(&r);
        assert_int_equal(p.most_inside, sizes[i]);
        assert_int_equal(p.calls, 50);
    }
}

static mr_error *on_dequeue(mr_dequeue *ask, void *user)
{
    probe *p = user;
    atomic_fetch_add(&p->asked, 1);
    if (p->refuse)
        mr_dequeue_refuse(ask);
    const char *low[] = {"w2"}, *high[] = {"w4"};
    mr_error *error = mr_dequeue_where(ask, "what >= $1", 1, low);
    return error != NULL ? error : mr_dequeue_where(ask, "what <= $1", 1, high);
}

static void s37_a_hook_that_refuses(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 5);
    probe p = {.refuse = true};
    mr_queue *queue = queue_for(&p);
    mr_queue_on_dequeue(queue, on_dequeue, &p);
    running r;
    start(&r, conf_for(s), queue);
    for (int i = 0; i < 3000 && atomic_load(&p.asked) < 5; i++)
        (void)usleep(10000);
    stop(&r);
    assert_true(p.asked >= 5);
    assert_int_equal(p.calls, 0);
    assert_int_equal(in_state(s->conn, "queued"), 5);
}

static void s38_a_hook_that_adds_conditions(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 6);
    probe p = {0};
    mr_queue *queue = queue_for(&p);
    mr_queue_on_dequeue(queue, on_dequeue, &p);
    running r;
    start(&r, conf_for(s), queue);
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'completed'", 3);
    stop(&r);
    assert_string_equal(value(s->conn, "SELECT string_agg(what, ',' ORDER BY id) FROM work WHERE"
                                       " state = 'completed'"),
                        "w2,w3,w4");
}

static void s39_heartbeats_while_it_runs(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 3);
    probe p = {.hold = true};
    mr_queue *queue = queue_for(&p);
    assert_ok(mr_queue_set(queue, "num_handlers", "2"));
    assert_ok(mr_queue_set(queue, "look_ahead", "5")); /* what waits is stamped, too */
    running r;
    start(&r, conf_for(s), queue);
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'processing'", 3);
    char sql[200];
    for (int i = 0; i < 5; i++) {
        (void)snprintf(sql, sizeof(sql), "SELECT count(*) FROM work WHERE last_heartbeat_at > '%s'",
                       value(s->conn, "SELECT max(last_heartbeat_at) FROM work"));
        await(s->conn, sql, 3);
    }
    atomic_store(&p.hold, false);
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'completed'", 3);
    stop(&r);
}

static void s40_so_many_jobs_and_no_more(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 20);
    probe p = {0};
    mr_queue *queue = queue_for(&p);
    assert_ok(mr_queue_set(queue, "max_total_jobs", "5"));
    assert_ok(mr_queue_set(queue, "num_handlers", "3"));
    running r;
    start(&r, conf_for(s), queue);
    wait_end(&r); /* by itself */
    assert_int_equal(p.calls, 5);
    assert_int_equal(in_state(s->conn, "completed"), 5);
    assert_int_equal(in_state(s->conn, "queued"), 15);
}

static void s41_only_so_long(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 1);
    probe p = {0};
    mr_queue *queue = queue_for(&p);
    assert_ok(mr_queue_set(queue, "max_active_time", "300ms"));
    running r;
    start(&r, conf_for(s), queue);
    wait_end(&r);
    assert_int_equal(in_state(s->conn, "completed"), 1);
}

static void s42_a_cancel_reaches_the_handler(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 1);
    probe p = {.hold = true, .effects = true};
    running r;
    start(&r, conf_for(s), queue_for(&p));
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'processing'", 1);
    run(s->conn, "UPDATE work SET cancel = true");
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'canceled'", 1);
    stop(&r);
    assert_int_equal(p.cancelled, 1);
    assert_int_equal(number(s->conn, "SELECT num_failures FROM work"), 0);
    assert_int_equal(number(s->conn, "SELECT count(*) FROM effects"), 0);
}

static void s43_a_job_that_runs_too_long(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 1);
    probe p = {.hold = true};
    mr_queue *queue = queue_for(&p);
    assert_ok(mr_queue_set(queue, "max_runtime", "10ms"));
    assert_ok(mr_queue_set(queue, "retry_after", "1h"));
    running r;
    start(&r, conf_for(s), queue);
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'errored'", 1);
    stop(&r);
    assert_non_null(strstr(value(s->conn, "SELECT failure_message FROM work"), "10ms"));
}

static void s44_a_stop_lets_jobs_finish(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 30);
    probe p = {.hold = true, .effects = true};
    mr_queue *queue = queue_for(&p);
    assert_ok(mr_queue_set(queue, "num_handlers", "2"));
    assert_ok(mr_queue_set(queue, "look_ahead", "10"));
    running r;
    start(&r, conf_for(s), queue);
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'processing'", 12);
    for (int i = 0; i < 3000 && atomic_load(&p.inside) < 2; i++)
        (void)usleep(10000);
    mr_worker_stop(r.worker);
    /* What had not begun is given back, as it was. */
    await(s->conn,
          "SELECT count(*) FROM work WHERE state = 'queued' AND num_failures = 0 AND"
          " num_resets = 0",
          28);
    atomic_store(&p.hold, false);
    wait_end(&r);
    assert_int_equal(in_state(s->conn, "completed"), 2);
    assert_int_equal(p.cancelled, 0);
    assert_int_equal(number(s->conn, "SELECT count(*) FROM effects"), 2);
}

static void a_forced_stop_gives_back(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 3);
    probe p = {.hold = true, .effects = true};
    mr_queue *queue = queue_for(&p);
    assert_ok(mr_queue_set(queue, "num_handlers", "3"));
    running r;
    start(&r, conf_for(s), queue);
    for (int i = 0; i < 3000 && atomic_load(&p.inside) < 3; i++)
        (void)usleep(10000);
    mr_worker_stop(r.worker);
    mr_worker_stop(r.worker);
    wait_end(&r);
    assert_int_equal(p.calls, 3);
    assert_int_equal(number(s->conn, "SELECT count(*) FROM work WHERE state = 'queued' AND"
                                     " num_failures = 0"),
                     3);
    assert_int_equal(number(s->conn, "SELECT count(*) FROM effects"), 0);
}

static void s45_the_resetter(void **state)
{
    scratch *s = *state;
    run(s->conn, "INSERT INTO work (state, started_at, last_heartbeat_at, num_resets,"
                 " worker_hostname) VALUES ('processing', now() - interval '1 hour',"
                 " now() - interval '1 hour', 0, 'gone'), ('processing', now() - interval '1 hour',"
                 " now() - interval '1 hour', 3, 'gone'), ('processing', now(), now() + interval"
                 " '1 hour', 0, 'alive')");
    probe p = {0};
    running r;
    start(&r, conf_for(s), queue_for(&p));
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'completed' AND num_resets = 1", 1);
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'failed' AND num_resets = 3", 1);
    stop(&r);
    assert_int_equal(in_state(s->conn, "processing"), 1);
    assert_int_equal(p.calls, 1);
}

/* ---- Beyond the list ----------------------------------------------------------------------- */

static void a_lost_job_changes_nothing(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 1);
    probe p = {.hold = true, .effects = true};
    running r;
    start(&r, conf_for(s), queue_for(&p));
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'processing'", 1);
    /* As a resetter would have done, and another worker's claim. */
    run(s->conn, "UPDATE work SET lease_generation = lease_generation + 1, worker_hostname = 'b',"
                 " started_at = now(), last_heartbeat_at = now() + interval '1 hour'");
    for (int i = 0; i < 3000 && atomic_load(&p.cancelled) < 1; i++)
        (void)usleep(10000);
    assert_int_equal(p.cancelled, 1);
    stop(&r);
    assert_string_equal(value(s->conn, "SELECT state || worker_hostname FROM work"), "processingb");
    assert_int_equal(number(s->conn, "SELECT count(*) FROM effects"), 0);
}

static void a_deleted_job_stops(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 1);
    probe p = {.hold = true, .effects = true};
    running r;
    start(&r, conf_for(s), queue_for(&p));
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'processing'", 1);
    run(s->conn, "DELETE FROM work");
    for (int i = 0; i < 3000 && atomic_load(&p.cancelled) < 1; i++)
        (void)usleep(10000);
    stop(&r);
    assert_int_equal(p.cancelled, 1);
    assert_int_equal(number(s->conn, "SELECT count(*) FROM effects"), 0);
}

static void lost_connections_drop_nothing(void **state)
{
    scratch *s = *state;
    probe p = {.hold = true};
    mr_queue *queue = queue_for(&p);
    assert_ok(mr_queue_set(queue, "num_handlers", "4"));
    /* A claim whose answer was lost is found by the resetter. */
    assert_ok(mr_queue_set(queue, "stalled_max_age", "1s"));
    running r;
    start(&r, conf_for(s), queue);
    for (int i = 0; i < 3; i++) {
        add_jobs(s->conn, 40);
        for (int k = 0; k < 3000 && atomic_load(&p.inside) < 4; k++)
            (void)usleep(10000);
        run(s->conn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE"
                     " application_name LIKE 'millrace %' AND datname = current_database()");
        int64_t before = number(s->conn, "SELECT count(*) FROM work WHERE state = 'completed'");
        atomic_store(&p.hold, false);
        char sql[100];
        (void)snprintf(sql, sizeof(sql),
                       "SELECT (count(*) > %lld)::int FROM work WHERE state = 'completed'",
                       (long long)before);
        await(s->conn, sql, 1);
        atomic_store(&p.hold, i < 2);
    }
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'completed'", 120);
    stop(&r);
    assert_int_equal(p.cancelled, 0); /* a failed heartbeat takes no job away */
    assert_int_equal(p.calls, 120);
    assert_int_equal(number(s->conn, "SELECT sum(num_failures) FROM work"), 0);
}

static mr_error *before(mr_job *job, void *user)
{
    probe *p = user;
    atomic_fetch_add(&p->before, 1);
    return strcmp(mr_job_value(job, "what"), "w2") == 0
               ? mr_error_new(MR_E_HANDLER, false, "no budget")
               : NULL;
}

static void after(mr_job *job, const mr_error *error, void *user)
{
    probe *p = user;
    (void)job;
    (void)error;
    atomic_fetch_add(&p->after, 1);
}

static void hooks_around_the_handler(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 4);
    probe p = {0};
    mr_queue *queue = queue_for(&p);
    mr_queue_on_handle(queue, before, after, &p);
    mr_conf *conf = conf_for(s);
    assert_ok(mr_conf_set(conf, "once", "true"));
    running r;
    start(&r, conf, queue);
    wait_end(&r);
    assert_int_equal(p.before, 4);
    assert_int_equal(p.after, 4);
    assert_int_equal(p.calls, 3);
    assert_string_equal(
        value(s->conn, "SELECT state || failure_message FROM work WHERE what = 'w2'"),
        "failedno budget");
}

static mr_error *mixed(mr_job *job, void *user)
{
    (void)user;
    const char *what = mr_job_value(job, "what");
    if (strcmp(what, "w1") == 0)
        mr_job_snooze(job, 3600000);
    if (strcmp(what, "w2") == 0)
        mr_job_requeue(job, 3600000);
    int index = 0;
    if (strcmp(what, "w3") == 0) {
        mr_error *error = mr_job_log(job, "{\"step\": 1}", &index);
        return error != NULL ? error : mr_job_log_update(job, index, "{\"step\": 2}");
    }
    return NULL;
}

static void snooze_requeue_and_logs(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 4);
    mr_queue *queue = queue_for(&(probe){0});
    mr_queue_on_job(queue, mixed, NULL, NULL);
    mr_conf *conf = conf_for(s);
    assert_ok(mr_conf_set(conf, "once", "true"));
    running r;
    start(&r, conf, queue);
    wait_end(&r);
    assert_string_equal(
        value(s->conn, "SELECT string_agg(what || ':' || state || ':' || num_failures, ' ' ORDER BY"
                       " id) FROM work"),
        "w1:queued:0 w2:queued:0 w3:completed:0 w4:completed:0");
    assert_int_equal(number(s->conn, "SELECT count(*) FROM work WHERE process_after > now() +"
                                     " interval '50 min'"),
                     2);
    assert_string_equal(value(s->conn, "SELECT execution_logs[1]->>'step' FROM work WHERE what ="
                                       " 'w3'"),
                        "2");
}

static void counts_and_waits(void **state)
{
    scratch *s = *state;
    probe p = {0};
    mr_conf *conf = conf_for(s);
    assert_ok(mr_conf_take_queue(conf, queue_for(&p)));
    int64_t n = -1;
    bool there = true;
    assert_ok(mr_queue_exists(s->conn, conf, "work", "queued", &there));
    assert_false(there);
    assert_ok(mr_queue_wait(s->conn, conf, "work", &n));
    assert_int_equal(n, 0);
    add_jobs(s->conn, 5);
    run(s->conn,
        "UPDATE work SET state = 'failed' WHERE id = 1; UPDATE work SET created_at = now() -"
        " interval '1 hour' WHERE id = 3");
    assert_ok(mr_queue_count(s->conn, conf, "work", "queued,errored", &n));
    assert_int_equal(n, 4);
    assert_ok(mr_queue_count(s->conn, conf, "work", "failed", &n));
    assert_int_equal(n, 1);
    assert_ok(mr_queue_exists(s->conn, conf, "work", "processing,failed", &there));
    assert_true(there);
    assert_ok(mr_queue_wait(s->conn, conf, "work", &n));
    assert_in_range(n, 3600 * 1000000LL, 3700 * 1000000LL);
    assert_error(mr_queue_count(s->conn, conf, "work", "", &n), MR_E_USAGE, "state");
    assert_error(mr_queue_count(s->conn, conf, "work", "done", &n), MR_E_USAGE, "no state 'done'");
    assert_error(mr_queue_count(s->conn, conf, "wok", "queued", &n), MR_E_USAGE, "work");
    mr_conf_free(conf);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, scratch_teardown)

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        TEST(s33_success_completes),
        TEST(s34_s35_errors),
        TEST(s36_never_more_than_num_handlers),
        TEST(s37_a_hook_that_refuses),
        TEST(s38_a_hook_that_adds_conditions),
        TEST(s39_heartbeats_while_it_runs),
        TEST(s40_so_many_jobs_and_no_more),
        TEST(s41_only_so_long),
        TEST(s42_a_cancel_reaches_the_handler),
        TEST(s43_a_job_that_runs_too_long),
        TEST(s44_a_stop_lets_jobs_finish),
        TEST(a_forced_stop_gives_back),
        TEST(s45_the_resetter),
        TEST(a_lost_job_changes_nothing),
        TEST(a_deleted_job_stops),
        TEST(lost_connections_drop_nothing),
        TEST(hooks_around_the_handler),
        TEST(snooze_requeue_and_logs),
        TEST(counts_and_waits),
    };
    return cmocka_run_group_tests_name("queue_worker", tests, NULL, NULL);
}
