/* The reference's scenarios for a store, 1 to 32 of the acceptance list, on each form of table.
 * Where Millrace does something else the test says what and why:
 *  - times are the server's, never the client's, so rows are dated by the server's clock here;
 *  - heartbeats and outcomes name their claim (a fence), so "the same host" is not enough, and a
 * row that nobody claimed has to be given what a claim would have left in it. */
#include "queue_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All share a database; each makes its tables anew. */
#define SCENARIO(name) cmocka_unit_test(name)

static int64_t count_of(queue_test *t, unsigned states)
{
    int64_t count = -1;
    assert_ok(mr__queue_count(on_conn(t->conn), t->store, states, &count));
    return count;
}

static bool exists(queue_test *t, unsigned states)
{
    bool found = false;
    assert_ok(mr__queue_exists(on_conn(t->conn), t->store, states, &found));
    return found;
}

/* The longest wait, in whole minutes. */
static int64_t wait_minutes(queue_test *t)
{
    int64_t wait = -1;
    assert_ok(mr__queue_wait(on_conn(t->conn), t->store, &wait));
    return (wait + SECONDS(30)) / MINUTES(1);
}

static void s01_s02_counts(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state",
         "(1, 'queued'), (2, 'queued'), (3, 'state2'), (4, 'queued'), (5, 'processing')");
    assert_int_equal(count_of(&t, MR_IN_QUEUED | MR_IN_ERRORED), 3);
    assert_int_equal(count_of(&t, MR_IN_QUEUED | MR_IN_ERRORED | MR_IN_PROCESSING), 4);
    queue_end(&t);
}

static void s03_exists(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state", "(1, 'queued'), (2, 'queued')");
    assert_true(exists(&t, MR_IN_QUEUED));
    assert_false(exists(&t, MR_IN_ERRORED));
    assert_true(exists(&t, MR_IN_QUEUED | MR_IN_ERRORED));
    bool found = false;
    assert_error(mr__queue_exists(on_conn(t.conn), t.store, 0, &found), MR_E_USAGE, "one state");
    int64_t count = 0;
    assert_error(mr__queue_count(on_conn(t.conn), t.store, 0, &count), MR_E_USAGE, "one state");
    queue_end(&t);
}

static void s04_count_of_failures(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state, num_failures",
         "(1, 'queued', 0), (2, 'errored', 2), (3, 'errored', 3), (4, 'failed', 1),"
         " (5, 'failed', 3)");
    assert_int_equal(count_of(&t, MR_IN_QUEUED | MR_IN_ERRORED), 3);
    queue_end(&t);
}

static void s05_wait(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state, created_at",
         "(1, 'queued', now() - '20 minutes'::interval),"
         " (2, 'queued', now() - '30 minutes'::interval),"
         " (3, 'state2', now() - '40 minutes'::interval),"
         " (4, 'queued', now() - '10 minutes'::interval),"
         " (5, 'state3', now() - '50 minutes'::interval)");
    assert_int_equal(wait_minutes(&t), 30);
    queue_end(&t);
}

static void s06_wait_of_deferred(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state, created_at, process_after",
         "(1, 'queued', now() - '90 minutes'::interval, now() + '1 hour'::interval),"
         " (2, 'queued', now() - '70 minutes'::interval, now() - '30 minutes'::interval),"
         " (3, 'queued', now() - '10 minutes'::interval, NULL)");
    assert_int_equal(wait_minutes(&t), 30);
    queue_end(&t);
}

static void s07_wait_of_errored(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    t.policy.retry_after = MINUTES(5);
    queue_open(&t);
    rows(&t, "id, state, created_at, finished_at",
         "(1, 'queued', now() - '20 minutes'::interval, NULL),"
         " (2, 'errored', now() - '100 minutes'::interval, now() - '30 minutes'::interval),"
         " (3, 'errored', now() - '100 minutes'::interval, now() - '4 minutes'::interval)");
    assert_int_equal(wait_minutes(&t), 25);
    t.policy.retry_after = 0;
    queue_open(&t);
    assert_int_equal(wait_minutes(&t), 20);
    queue_end(&t);
}

static void s08_wait_of_nothing(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    assert_int_equal(wait_minutes(&t), 0);
    queue_end(&t);
}

static void s09_claim_takes_queued(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(
        &t, "id, state, created_at",
        "(1, 'state2', now() - '1 minute'::interval), (2, 'queued', now() - '2 minutes'::interval),"
        " (3, 'state2', now() - '3 minutes'::interval),"
        " (4, 'queued', now() - '4 minutes'::interval),"
        " (5, 'state2', now() - '5 minutes'::interval)");
    mr_jobs *jobs = claim(&t, 1);
    assert_int_equal(mr__jobs_count(jobs), 1);
    mr_job_row job = mr__jobs_at(jobs, 0);
    assert_string_equal(job.id, "4");
    assert_string_equal(job_value(&job, "state"), "processing");
    assert_string_equal(job_value(&job, "worker_hostname"), "me");
    assert_non_null(job_value(&job, "started_at"));
    assert_string_equal(row(&t, 4, "state, worker_hostname"), "processing|me");
    mr__jobs_unref(jobs);
    queue_end(&t);
}

static void s10_claim_order(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, created_at",
         "(1, now() - '2 minutes'::interval), (2, now() - '5 minutes'::interval),"
         " (3, now() - '3 minutes'::interval), (4, now() - '1 minute'::interval),"
         " (5, now() - '4 minutes'::interval)");
    assert_int_equal(claim_one(&t), 2);
    /* A batch is in order too. */
    mr_jobs *jobs = claim(&t, 10);
    assert_int_equal(mr__jobs_count(jobs), 4);
    static const char *const order[] = {"5", "3", "1", "4"};
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(mr__jobs_at(jobs, i).id, order[i]);
    mr__jobs_unref(jobs);
    queue_end(&t);
}

static void s11_claim_with_conditions(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, created_at",
         "(1, now() - '1 minute'::interval), (2, now() - '2 minutes'::interval),"
         " (3, now() - '3 minutes'::interval), (4, now() - '4 minutes'::interval),"
         " (5, now() - '5 minutes'::interval)");
    const char *below[] = {"4"};
    mr_condition one = {.sql = "w.id < $1::int -- not $2", .count = 1, .values = below};
    assert_int_equal(claim_where(&t, &one, 1), 3);
    /* Several are all wanted, each with its own numbering. */
    const char *range[] = {"1", "3"}, *text[] = {"$1"};
    mr_condition both[] = {{.sql = "id BETWEEN $1::int AND $2::int", .count = 2, .values = range},
                           {.sql = "'$1' = $1 AND true", .count = 1, .values = text}};
    assert_int_equal(claim_where(&t, both, 2), 2);
    mr_condition wrong = {.sql = "id = $2", .count = 1, .values = below};
    mr_claim wanted = {.count = 1, .worker = "me", .conditions = &wrong, .condition_count = 1};
    mr_jobs *jobs = NULL;
    assert_error(mr__queue_claim(on_conn(t.conn), t.store, &wanted, NULL, &mr__clock_system, &jobs),
                 MR_E_USAGE, "asks for $2 but brings 1");
    queue_end(&t);
}

static void s12_claim_clears(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    t.policy.retry_after = SECONDS(1);
    queue_open(&t);
    rows(&t, "id, state, finished_at, failure_message, execution_logs",
         "(1, 'errored', now() - '1 hour'::interval, 'boom',"
         " ARRAY['{\"a\":1}', '{\"b\":2}']::json[])");
    mr_jobs *jobs = claim(&t, 1);
    mr_job_row job = mr__jobs_at(jobs, 0);
    assert_null(job_value(&job, "execution_logs"));
    assert_null(job_value(&job, "failure_message"));
    assert_null(job_value(&job, "finished_at"));
    assert_string_equal(row(&t, 1, "state, coalesce(cardinality(execution_logs), 0)"),
                        "processing|0");
    mr__jobs_unref(jobs);
    queue_end(&t);
}

static void s13_claim_skips_deferred(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, created_at, process_after",
         "(1, now() - '1 minute'::interval, NULL), (2, now() - '2 minutes'::interval, NULL),"
         " (3, now() - '3 minutes'::interval, NULL), (4, now() - '4 minutes'::interval, NULL),"
         " (5, now() - '5 minutes'::interval, now() + '3 minutes'::interval)");
    assert_int_equal(claim_one(&t), 4);
    run(t.conn, "UPDATE work SET process_after = now() - '1 second'::interval WHERE id = 5");
    assert_int_equal(claim_one(&t), 5);
    queue_end(&t);
}

static void s14_claim_by_view_column(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    if (t.form == FORM_VIEW) {
        rows(&t, "id, created_at",
             "(1, now() - '2 minutes'::interval), (2, now() - '5 minutes'::interval),"
             " (3, now() - '3 minutes'::interval), (4, now() - '1 minute'::interval)");
        mr_condition only = {.sql = "w.new_field < 15"};
        mr_claim wanted = {.count = 1, .worker = "me", .conditions = &only, .condition_count = 1};
        mr_jobs *jobs = NULL;
        assert_ok(
            mr__queue_claim(on_conn(t.conn), t.store, &wanted, NULL, &mr__clock_system, &jobs));
        mr_job_row job = mr__jobs_at(jobs, 0);
        assert_string_equal(job.id, "2");
        assert_string_equal(job_value(&job, "new_field"), "14");
        mr__jobs_unref(jobs);
    }
    queue_end(&t);
}

static void s15_concurrent_claims(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, created_at",
         "(1, now() - '2 minutes'::interval), (2, now() - '1 minute'::interval)");
    PGconn *others[3];
    static const char *const wanted[] = {"1", "2"};
    for (int i = 0; i < 3; i++) {
        /* Each claim stays open, so its row is locked for the next. */
        others[i] = scratch_connect(t.s);
        run(others[i], "BEGIN");
        mr_jobs *jobs = claim_as(&t, others[i], "me", 1);
        assert_int_equal(mr__jobs_count(jobs), i < 2 ? 1 : 0);
        if (i < 2)
            assert_string_equal(mr__jobs_at(jobs, 0).id, wanted[i]);
        mr__jobs_unref(jobs);
    }
    for (int i = 0; i < 3; i++) {
        run(others[i], "COMMIT");
        PQfinish(others[i]);
    }
    queue_end(&t);
}

static void retry_rows(queue_test *t)
{
    rows(t, "id, state, created_at, finished_at, num_failures",
         "(1, 'errored', now() - '6 minutes'::interval, now() - '6 minutes'::interval, 1),"
         " (2, 'queued', now() - '5 minutes'::interval, NULL, 0),"
         " (3, 'errored', now() - '7 minutes'::interval, now() - '4 minutes'::interval, 1),"
         " (4, 'failed', now() - '9 minutes'::interval, now() - '9 minutes'::interval, 3)");
}

static void s16_claim_of_errored(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    t.policy.retry_after = MINUTES(5);
    queue_open(&t);
    retry_rows(&t);
    assert_int_equal(claim_one(&t), 1);
    assert_int_equal(claim_one(&t), 2);
    assert_int_equal(claim_one(&t), 0);
    queue_end(&t);
}

static void s17_no_retries(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    t.policy.retry_after = 0;
    queue_open(&t);
    retry_rows(&t);
    assert_int_equal(claim_one(&t), 2);
    assert_int_equal(claim_one(&t), 0);
    queue_end(&t);
}

static void s18_requeue(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state, created_at, started_at, cancel",
         "(1, 'processing', now() - '1 hour'::interval, now(), true)");
    mr_outcome back = {.id = "1",
                       .fence = fence_of(&t, 1),
                       .kind = MR_OUTCOME_REQUEUE,
                       .at = "2090-01-02 03:04:05+00"};
    assert_string_equal(finish_as(&t, t.conn, "", back), "queued");
    assert_string_equal(row(&t, 1,
                            "state, process_after, started_at IS NULL, cancel, num_failures,"
                            " created_at > now() - '1 minute'::interval"),
                        "queued|2090-01-02 03:04:05+00|t|f|0|t");
    queue_end(&t);
}

static mr_log_target log_of(const char *id)
{
    return (mr_log_target){.id = id};
}

static void s19_log_entries(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state", "(1, 'processing')");
    mr_log_target target = log_of("1");
    for (int i = 1; i <= 5; i++) {
        char entry[64];
        int index = 0;
        (void)snprintf(entry, sizeof(entry), "{\"command\": [\"ls\", \"-a\"], \"out\": \"<%d>\"}",
                       i);
        assert_ok(mr__queue_log_add(on_conn(t.conn), t.store, &target, entry, &index));
        assert_int_equal(index, i);
    }
    assert_string_equal(value(t.conn, "SELECT string_agg(l->>'out', '' ORDER BY n) FROM work,"
                                      " unnest(execution_logs) WITH ORDINALITY AS u(l, n)"),
                        "<1><2><3><4><5>");
    queue_end(&t);
}

static void s20_log_entry_of_nobody(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    mr_log_target target = log_of("1");
    assert_error(mr__queue_log_add(on_conn(t.conn), t.store, &target, "{}", NULL), MR_E_USAGE,
                 "queue work has no job 1");
    assert_error(mr__queue_log_set(on_conn(t.conn), t.store, &target, 1, "{}"), MR_E_USAGE,
                 "queue work has no job 1");
    queue_end(&t);
}

static void s21_log_entries_replaced(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state", "(1, 'processing')");
    mr_log_target target = log_of("1");
    for (int i = 1; i <= 5; i++)
        assert_ok(mr__queue_log_add(on_conn(t.conn), t.store, &target, "{\"old\": 1}", NULL));
    for (int i = 1; i <= 5; i++) {
        char entry[32];
        (void)snprintf(entry, sizeof(entry), "{\"n\": %d}", i);
        assert_ok(mr__queue_log_set(on_conn(t.conn), t.store, &target, i, entry));
    }
    assert_string_equal(value(t.conn, "SELECT string_agg(l->>'n', ',' ORDER BY n) FROM work,"
                                      " unnest(execution_logs) WITH ORDINALITY AS u(l, n)"),
                        "1,2,3,4,5");
    queue_end(&t);
}

static void s22_log_entries_that_are_not(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state", "(1, 'processing')");
    mr_log_target target = log_of("1");
    for (int i = 0; i < 2; i++)
        assert_error(mr__queue_log_set(on_conn(t.conn), t.store, &target, i, "{}"), MR_E_USAGE,
                     "has no entry");
    assert_string_equal(row(&t, 1, "execution_logs IS NULL"), "t");
    queue_end(&t);
}

static void s23_complete(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state, started_at", "(1, 'processing', now())");
    assert_string_equal(finish(&t, 1, MR_OUTCOME_COMPLETE, NULL), "completed");
    assert_string_equal(row(&t, 1, "state, failure_message IS NULL, finished_at IS NOT NULL"),
                        "completed|t|t");
    queue_end(&t);
}

static void s24_complete_too_late(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state, failure_message, started_at", "(1, 'errored', 'old message', now())");
    assert_string_equal(finish(&t, 1, MR_OUTCOME_COMPLETE, NULL), "");
    assert_string_equal(row(&t, 1, "state, failure_message"), "errored|old message");
    queue_end(&t);
}

static void s25_errored(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state, started_at", "(1, 'processing', now())");
    assert_string_equal(finish(&t, 1, MR_OUTCOME_ERROR, "new message"), "errored");
    assert_string_equal(row(&t, 1, "state, failure_message, num_failures"),
                        "errored|new message|1");
    queue_end(&t);
}

static void s26_failed(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state, started_at", "(1, 'processing', now())");
    assert_string_equal(finish(&t, 1, MR_OUTCOME_FAIL, "new message"), "failed");
    assert_string_equal(row(&t, 1, "state, failure_message, num_failures"), "failed|new message|1");
    queue_end(&t);
}

static void s27_s28_errored_too_late(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state, failure_message, started_at",
         "(1, 'completed', NULL, now()), (2, 'errored', 'old message', now())");
    assert_string_equal(finish(&t, 1, MR_OUTCOME_ERROR, "new message"), "");
    assert_string_equal(row(&t, 1, "state, failure_message IS NULL"), "completed|t");
    assert_string_equal(finish(&t, 2, MR_OUTCOME_ERROR, "new message"), "");
    assert_string_equal(row(&t, 2, "state, failure_message"), "errored|old message");
    queue_end(&t);
}

static void s29_retries_used_up(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    t.policy.max_retries = 2;
    queue_open(&t);
    rows(&t, "id, state, num_failures, started_at",
         "(1, 'processing', 0, now()), (2, 'processing', 1, now())");
    assert_string_equal(finish(&t, 1, MR_OUTCOME_ERROR, "droopy"), "errored");
    assert_string_equal(finish(&t, 2, MR_OUTCOME_ERROR, "droopy"), "failed");
    /* 0 = no retry at all: always failed. */
    t.policy.max_retries = 0;
    queue_open(&t);
    rows(&t, "id, state, started_at", "(3, 'processing', now())");
    assert_string_equal(finish(&t, 3, MR_OUTCOME_ERROR, "droopy"), "failed");
    queue_end(&t);
}

static void s30_reset(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state, started_at, last_heartbeat_at, num_resets",
         "(1, 'processing', now(), now() - '6 seconds'::interval, 1),"
         " (2, 'processing', now(), now() - '2 seconds'::interval, 0),"
         " (3, 'processing', now(), now() - '3 seconds'::interval, 0),"
         " (4, 'processing', now(), now() - '8 seconds'::interval, 0),"
         " (5, 'processing', now(), now() - '8 seconds'::interval, 0),"
         " (6, 'processing', now(), now() - '6 seconds'::interval, 5),"
         " (7, 'processing', now(), now() - '8 seconds'::interval, 5)");
    PGconn *other = scratch_connect(t.s);
    run(other, "BEGIN; SELECT 1 FROM work WHERE id = 5 FOR UPDATE");
    mr_resets resets;
    assert_ok(mr__queue_reset(on_conn(t.conn), t.store, NULL, &resets));
    assert_int_equal(resets.count, 4);
    assert_false(resets.more);
    int queued = 0, failed = 0;
    for (size_t i = 0; i < resets.count; i++) {
        int id = (int)strtol(resets.rows[i].id, NULL, 10);
        bool again = strcmp(resets.rows[i].state, "queued") == 0;
        *(again ? &queued : &failed) += id;
        int64_t age = id == 1 || id == 6 ? SECONDS(6) : SECONDS(8);
        assert_true(resets.rows[i].age >= age && resets.rows[i].age < age + SECONDS(60));
    }
    assert_int_equal(queued, 1 + 4);
    assert_int_equal(failed, 6 + 7);
    mr__resets_free(&resets);
    run(other, "ROLLBACK");
    PQfinish(other);
    assert_string_equal(row(&t, 1, "state, num_resets, num_failures, started_at IS NULL"),
                        "queued|2|0|t");
    assert_string_equal(row(&t, 5, "state"), "processing");
    assert_string_equal(row(&t, 6, "state, num_resets, finished_at IS NOT NULL"), "failed|5|t");
    assert_non_null(strstr(row(&t, 7, "failure_message"), "its worker died"));
    queue_end(&t);
}

static void s31_heartbeats(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state, started_at, last_heartbeat_at, worker_hostname",
         "(1, 'queued', now(), now() - '1 hour'::interval, 'me'),"
         " (2, 'queued', now(), now() - '1 hour'::interval, 'me'),"
         " (3, 'queued', now(), now() - '1 hour'::interval, 'me'),"
         " (4, 'processing', now(), now() - '1 hour'::interval, 'me'),"
         " (5, 'processing', now(), now() - '1 hour'::interval, 'other'),"
         " (6, 'processing', now(), now() - '1 hour'::interval, 'me')");
    mr_beat beats[5] = {{.id = "1"}, {.id = "2"}, {.id = "3"}, {.id = "4"}, {.id = "5"}};
    for (int i = 0; i < 5; i++)
        beats[i].fence = fence_of(&t, i + 1);
    /* The reference can be told a host to go by. Here the fence decides; where it is the time of
     * the claim, the worker's name is part of it. With a generation another's job has another
     * fence. */
    if (t.form != FORM_PLAIN)
        beats[4].fence = 77;
    assert_ok(mr__queue_heartbeat(on_conn(t.conn), t.store, "me", beats, 5));
    for (int i = 0; i < 5; i++)
        assert_int_equal(beats[i].state, i == 3 ? MR_BEAT_OURS : MR_BEAT_LOST);
    assert_string_equal(value(t.conn, "SELECT string_agg(id::text, ',' ORDER BY id) FROM work"
                                      " WHERE last_heartbeat_at > now() - '1 minute'::interval"),
                        "4");
    /* Nothing to tell, nothing sent. */
    assert_ok(mr__queue_heartbeat(on_conn(NULL), t.store, "me", NULL, 0));
    queue_end(&t);
}

static void s32_cancelled_ids(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    queue_open(&t);
    rows(&t, "id, state, started_at, worker_hostname, cancel",
         "(1, 'processing', now(), 'me', false), (2, 'queued', now(), 'me', true),"
         " (3, 'processing', now(), 'me', true), (4, 'processing', now(), 'other', true)");
    mr_beat beats[4] = {{.id = "1"}, {.id = "2"}, {.id = "3"}, {.id = "4"}};
    for (int i = 0; i < 4; i++)
        beats[i].fence = fence_of(&t, i + 1);
    if (t.form != FORM_PLAIN)
        beats[3].fence = 77;
    assert_ok(mr__queue_heartbeat(on_conn(t.conn), t.store, "me", beats, 4));
    for (int i = 0; i < 4; i++)
        assert_int_equal(beats[i].cancel, i == 2);
    queue_end(&t);
}

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        SCENARIO(s01_s02_counts),
        SCENARIO(s03_exists),
        SCENARIO(s04_count_of_failures),
        SCENARIO(s05_wait),
        SCENARIO(s06_wait_of_deferred),
        SCENARIO(s07_wait_of_errored),
        SCENARIO(s08_wait_of_nothing),
        SCENARIO(s09_claim_takes_queued),
        SCENARIO(s10_claim_order),
        SCENARIO(s11_claim_with_conditions),
        SCENARIO(s12_claim_clears),
        SCENARIO(s13_claim_skips_deferred),
        SCENARIO(s14_claim_by_view_column),
        SCENARIO(s15_concurrent_claims),
        SCENARIO(s16_claim_of_errored),
        SCENARIO(s17_no_retries),
        SCENARIO(s18_requeue),
        SCENARIO(s19_log_entries),
        SCENARIO(s20_log_entry_of_nobody),
        SCENARIO(s21_log_entries_replaced),
        SCENARIO(s22_log_entries_that_are_not),
        SCENARIO(s23_complete),
        SCENARIO(s24_complete_too_late),
        SCENARIO(s25_errored),
        SCENARIO(s26_failed),
        SCENARIO(s27_s28_errored_too_late),
        SCENARIO(s29_retries_used_up),
        SCENARIO(s30_reset),
        SCENARIO(s31_heartbeats),
        SCENARIO(s32_cancelled_ids),
    };
    int failed = 0;
    for (int form = 0; form < FORM_COUNT; form++) {
        queue_test_form = (queue_form)form;
        failed += cmocka_run_group_tests_name(queue_form_name(queue_test_form), tests,
                                              scratch_setup, scratch_teardown);
    }
    return failed;
}
