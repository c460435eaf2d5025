/* Queues in a worker: the reference's scenarios 33 to 47 with real handlers, a real table and a
 * real server. Where Millrace does something else the test says what and why. */
#include "lane_fixture.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
        await_count(&p.inside, sizes[i]);
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
    await_count(&p.asked, 5);
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

static mr_error *take_a_while(mr_job *job, void *user)
{
    (void)job;
    atomic_fetch_add((atomic_int *)user, 1);
    (void)usleep(20000);
    return NULL;
}

/* The reference counts 5 or 6 by a clock of the test's own; here it is a real one, so what counts
 * is that it stops by itself, with jobs left, and finishes those that it took. */
static void s41_only_so_long(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 3000);
    probe p = {0};
    mr_queue *queue = queue_for(&p);
    mr_queue_on_job(queue, take_a_while, &p.calls, NULL);
    assert_ok(mr_queue_set(queue, "max_active_time", "300ms"));
    running r;
    start(&r, conf_for(s), queue);
    wait_end(&r);
    assert_in_range(p.calls, 1, 2999);
    assert_int_equal(in_state(s->conn, "completed"), p.calls);
    assert_int_equal(in_state(s->conn, "queued"), 3000 - p.calls);
}

static void s42_a_cancel_reaches_the_handler(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 1);
    probe p = {.hold = true, .effects = true};
    running r;
    start(&r, conf_for(s), queue_for(&p));
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'processing'", 1);
    await_count(&p.inside, 1);
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
    await_count(&p.inside, 2);
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

/* The reference keeps the ids that run in a set and refuses the second one. Millrace keeps claims,
 * of which an id may have several when the job was reset meanwhile: each has its own fence, and
 * losing the one stops its own handler only. */
static void s46_a_second_claim_of_the_same_job(void **state)
{
    scratch *s = *state;
    add_jobs(s->conn, 1);
    probe p = {.hold = true, .effects = true};
    mr_queue *queue = queue_for(&p);
    assert_ok(mr_queue_set(queue, "num_handlers", "2"));
    running r;
    start(&r, conf_for(s), queue);
    await_count(&p.inside, 1);
    run(s->conn, "UPDATE work SET state = 'queued', started_at = NULL"); /* as a resetter does */
    await(s->conn, "SELECT lease_generation FROM work", 2);
    await_count(&p.cancelled, 1);
    await_count(&p.inside, 1);
    /* The second one goes on, and is stamped. */
    char sql[160];
    (void)snprintf(sql, sizeof(sql), "SELECT count(*) FROM work WHERE last_heartbeat_at > '%s'",
                   value(s->conn, "SELECT clock_timestamp()"));
    await(s->conn, sql, 1);
    assert_int_equal(p.cancelled, 1);
    atomic_store(&p.hold, false);
    await(s->conn, "SELECT count(*) FROM work WHERE state = 'completed'", 1);
    stop(&r);
    assert_int_equal(p.calls, 2);
    assert_int_equal(number(s->conn, "SELECT count(*) FROM effects"), 1);
}

/* s47, that the set is listed in order, is in test_queue_fence.c: nothing depends on it here. */

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        LANE_TEST(s33_success_completes),
        LANE_TEST(s34_s35_errors),
        LANE_TEST(s36_never_more_than_num_handlers),
        LANE_TEST(s37_a_hook_that_refuses),
        LANE_TEST(s38_a_hook_that_adds_conditions),
        LANE_TEST(s39_heartbeats_while_it_runs),
        LANE_TEST(s40_so_many_jobs_and_no_more),
        LANE_TEST(s41_only_so_long),
        LANE_TEST(s42_a_cancel_reaches_the_handler),
        LANE_TEST(s43_a_job_that_runs_too_long),
        LANE_TEST(s44_a_stop_lets_jobs_finish),
        LANE_TEST(s45_the_resetter),
        LANE_TEST(s46_a_second_claim_of_the_same_job),
    };
    return cmocka_run_group_tests_name("queue_worker", tests, NULL, NULL);
}
