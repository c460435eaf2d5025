/* Queues in a worker, beyond the reference's list: what a stop, a cancel, a lost job, a hung
 * handler and a failed heartbeat do. */
#include "lane_fixture.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void a_forced_stop_gives_back(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 3);
    probe p = {.hold = true, .effects = true};
    mr_queue *queue = queue_for(&p);
    assert_ok(mr_queue_set(queue, "num_handlers", "3"));
    running r;
    start(&r, conf_for(s), queue);
    await_count(&p.inside, 3);
    mr_worker_stop(r.worker);
    mr_worker_stop(r.worker);
    wait_end(&r);
    assert_int_equal(p.calls, 3);
    assert_int_equal(number(s->conn, "SELECT count(*) FROM work WHERE state = 'queued' AND"
                                     " num_failures = 0"),
                     3);
    assert_int_equal(number(s->conn, "SELECT count(*) FROM effects"), 0);
}

static void await_metric(const mr_worker *worker, const char *name, int64_t wanted)
{
    for (int i = 0; i < 3000 && mr_worker_metric(worker, name) != wanted; i++)
        (void)usleep(10000);
    assert_int_equal(mr_worker_metric(worker, name), wanted);
}

static void a_lost_job_changes_nothing(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 1);
    probe p = {.hold = true, .effects = true};
    running r;
    start(&r, conf_for(s), queue_for(&p));
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'processing'", 1);
    await_count(&p.inside, 1);
    /* As a resetter would have done, and another worker's claim. */
    run(s->conn, "UPDATE work SET lease_generation = lease_generation + 1, worker_hostname = 'b',"
                 " started_at = now(), last_heartbeat_at = now() + interval '1 hour'");
    await_count(&p.cancelled, 1);
    assert_int_equal(p.cancelled, 1);
    await_metric(r.worker, "jobs_late", 1);
    assert_int_equal(mr_worker_metric(r.worker, "jobs_lost"), 1);
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
    await_count(&p.inside, 1);
    run(s->conn, "DELETE FROM work");
    await_count(&p.cancelled, 1);
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
        await_count(&p.inside, 4);
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

/* A statement of the heartbeat that fails says nothing about the jobs: their handlers go on. */
static void failed_heartbeats_drop_nothing(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE SEQUENCE beats;"
                 "CREATE FUNCTION flaky() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                 " IF nextval('beats') IN (1, 3) THEN RAISE EXCEPTION 'not now'; END IF;"
                 " RETURN NEW; END $$;"
                 "CREATE TRIGGER flaky BEFORE UPDATE ON work FOR EACH ROW WHEN (OLD.state ="
                 " 'processing' AND NEW.state = 'processing') EXECUTE FUNCTION flaky()");
    add_jobs(s->conn, 1);
    probe p = {.hold = true, .effects = true};
    running r;
    start(&r, conf_for(s), queue_for(&p));
    await(s->conn, "SELECT (last_value >= 5)::int FROM beats", 1);
    atomic_store(&p.hold, false);
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'completed' AND num_resets = 0", 1);
    stop(&r);
    assert_int_equal(p.cancelled, 0);
    assert_int_equal(number(s->conn, "SELECT count(*) FROM effects"), 1);
}

/* A handler in C that hears nothing cannot be ended, but its job can be taken from it. */
static void a_hung_handler_loses_its_job(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 1);
    probe p = {.hold = true, .deaf = true};
    mr_queue *queue = queue_for(&p);
    assert_ok(mr_queue_set(queue, "max_runtime", "50ms"));
    assert_ok(mr_queue_set(queue, "retry_after", "1h"));
    running r;
    start(&r, conf_for(s), queue);
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'errored'", 1);
    assert_int_equal(p.inside, 1);
    atomic_store(&p.hold, false);
    await_count(&p.calls, 1);
    stop(&r);
    assert_string_equal(value(s->conn, "SELECT state || num_failures || num_resets FROM work"),
                        "errored10");
    assert_string_equal(value(s->conn, "SELECT failure_message FROM work"),
                        "exceeded the maximum runtime of 50ms; its handler did not give up when it "
                        "was told to");
}

static mr_error *sleep_on_the_server(mr_job *job, void *user)
{
    atomic_fetch_add((atomic_int *)user, 1);
    mr_tx *tx = NULL;
    mr_error *error = mr_job_tx(job, &tx);
    PGresult *rows = NULL;
    if (error == NULL)
        error = mr_tx_query(tx, "SELECT pg_sleep(3600)", 0, NULL, &rows);
    PQclear(rows);
    return error;
}

/* What asks a handler to stop also cancels the statement that it waits for. */
static void a_running_statement_is_cancelled(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 3);
    probe p = {0};
    mr_queue *queue = queue_for(&p);
    mr_queue_on_job(queue, sleep_on_the_server, &p.calls, NULL);
    assert_ok(mr_queue_set(queue, "num_handlers", "3"));
    running r;
    start(&r, conf_for(s), queue);
    const char *asleep = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query ="
                         " 'SELECT pg_sleep(3600)' AND datname = current_database()";
    await(s->conn, asleep, 3);
    run(s->conn, "UPDATE work SET cancel = true WHERE what = 'w1'");
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'canceled'", 1);
    assert_string_equal(value(s->conn, "SELECT failure_message FROM work WHERE what = 'w1'"),
                        "the job was canceled while it ran");
    run(s->conn, "DELETE FROM work WHERE what = 'w2'");
    await(s->conn, asleep, 1);
    /* A stop that does not wait, either. */
    mr_worker_stop(r.worker);
    stop(&r);
    assert_string_equal(value(s->conn, "SELECT state || num_failures FROM work WHERE what = 'w3'"),
                        "queued0");
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

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        LANE_TEST(a_forced_stop_gives_back),
        LANE_TEST(a_lost_job_changes_nothing),
        LANE_TEST(a_deleted_job_stops),
        LANE_TEST(lost_connections_drop_nothing),
        LANE_TEST(failed_heartbeats_drop_nothing),
        LANE_TEST(a_hung_handler_loses_its_job),
        LANE_TEST(a_running_statement_is_cancelled),
        LANE_TEST(hooks_around_the_handler),
        LANE_TEST(snooze_requeue_and_logs),
        LANE_TEST(counts_and_waits),
    };
    return cmocka_run_group_tests_name("queue_life", tests, NULL, NULL);
}
