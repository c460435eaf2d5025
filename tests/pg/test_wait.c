/* Waiting for a position: when it ends, and what it says when it was in vain. */
#include "watch_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static void reached_at_once(void **state)
{
    PGconn *conn = conn_of(state);
    move_to(conn, "a", 17);
    assert_ok(mr_consumer_wait(conn, conf, "a", 17, 0));
    assert_ok(mr_consumer_wait(conn, conf, "a", 3, 0));
    assert_ok(mr_consumer_wait(conn, conf, "a", 0, 0));
    /* What is reached is reached, paused or not. */
    pause_consumer(conn, "a", "command", "ann", "NULL");
    assert_ok(mr_consumer_wait(conn, conf, "a", 17, 0));
}

static void wrong_calls(void **state)
{
    PGconn *conn = conn_of(state);
    move_to(conn, "order_totals", 0);
    move_to(conn, "parts#0/1", 0);
    assert_error(mr_consumer_wait(conn, conf, "order_totals", -1, 0), MR_E_USAGE, "negative");
    assert_error(mr_consumer_wait(conn, conf, "order_totals", 1, -1), MR_E_USAGE, "negative");
    assert_error(mr_consumer_wait(conn, conf, "order_total", 1, 0), MR_E_USAGE,
                 "there is no consumer order_total; did you mean order_totals?");
    assert_error(mr_consumer_wait(conn, conf, "nobody at all", 0, 0), MR_E_USAGE,
                 "there is no consumer nobody at all; see millrace consumers list");
    /* Part of a name, and signs that patterns would take for something else, are no name. */
    assert_error(mr_consumer_wait(conn, conf, "order", 1, 0), MR_E_USAGE, "no consumer order");
    assert_error(mr_consumer_wait(conn, conf, "p%", 1, 0), MR_E_USAGE, "no consumer p%");
    assert_error(mr_consumer_wait(conn, conf, "", 1, 0), MR_E_USAGE, "no consumer ");
    run(conn, "BEGIN");
    assert_error(mr_consumer_wait(conn, conf, "order_totals", 1, 0), MR_E_USAGE,
                 "outside of a transaction");
    run(conn, "ROLLBACK");
    assert_error(mr_list(conn, conf, "nothing", NULL), MR_E_USAGE, "there is no listing");
    assert_error(mr_list(conn, conf, "consumers:a", NULL), MR_E_USAGE, "there is no listing");
}

static void timeouts_say_why(void **state)
{
    PGconn *conn = conn_of(state);
    move_to(conn, "a", 2);
    assert_error(mr_consumer_wait(conn, conf, "a", 17, 5), MR_E_TIMEOUT,
                 "consumer a did not reach position 17 within 5ms: it is at 2, where it was; the "
                 "head of the log is only 0; no worker runs it (unassigned)");
    assign(conn, "a", "NULL");
    add_events(conn, 20);
    mr_error *error = mr_consumer_wait(conn, conf, "a", 17, 5);
    assert_int_equal(mr_error_code(error), MR_E_TIMEOUT);
    assert_true(mr_error_retryable(error));
    assert_null(strstr(mr_error_message(error), "head"));
    mr_error_free(error);
    add_worker(conn, A, "{b}", "{}");
    assert_error(mr_consumer_wait(conn, conf, "a", 17, 0), MR_E_TIMEOUT,
                 "no worker runs it (no worker can run it)");
    run(conn, "UPDATE millrace.consumer_assignments SET worker_id = " A);
    assert_error(mr_consumer_wait(conn, conf, "a", 17, 0), MR_E_TIMEOUT, "; it is running");
    run(conn, "UPDATE millrace.worker_nodes SET info ="
              " '{\"consumers\": {\"a\": {\"failures\": 2, \"error\": \"no room\"}}}'");
    assert_error(mr_consumer_wait(conn, conf, "a", 17, 0), MR_E_TIMEOUT, "failing: no room");
    run(conn, "UPDATE millrace.worker_nodes SET heartbeat_at = now() - interval '1 h'");
    assert_error(mr_consumer_wait(conn, conf, "a", 17, 0), MR_E_TIMEOUT,
                 "its worker host:7 is silent");
    run(conn, "UPDATE millrace.worker_nodes SET heartbeat_at = now(), info = '{}';"
              "DELETE FROM events WHERE global_position = 3;"
              "UPDATE events SET created_at = now() - interval '1 h';"
              "UPDATE millrace.consumer_checkpoints SET updated_at = now() - interval '1 h'");
    assert_error(mr_consumer_wait(conn, conf, "a", 17, 0), MR_E_TIMEOUT,
                 "it waits before a hole at position 3, see: millrace gaps open");
}

static void paused_ends_a_wait(void **state)
{
    PGconn *conn = conn_of(state);
    move_to(conn, "a", 2);
    move_to(conn, "b", 2);
    pause_consumer(conn, "a", "command", "ann", "'a deploy'");
    pause_consumer(conn, "b", "failure", "worker 1", "'division by zero'");
    assert_error(mr_consumer_wait(conn, conf, "a", 17, 60000), MR_E_STATE,
                 "consumer a is paused by ann since ");
    assert_error(mr_consumer_wait(conn, conf, "a", 17, 60000), MR_E_STATE,
                 ": a deploy; it is at 2 and will not reach 17 until it goes on: millrace "
                 "consumers resume a");
    assert_error(mr_consumer_wait(conn, conf, "b", 17, 60000), MR_E_STATE, "division by zero");
    assert_ok(mr_consumer_wait(conn, conf, "a", 0, 60000));
}

static void dead_letters_are_not_applied(void **state)
{
    PGconn *conn = conn_of(state);
    move_to(conn, "a", 20);
    add_letter(conn, "a", 17, "poison");
    add_letter(conn, "a", 18, "parked");
    assert_error(mr_consumer_wait(conn, conf, "a", 17, 60000), MR_E_STATE,
                 "position 17 went to the dead letters of a: no such account");
    assert_error(mr_consumer_wait(conn, conf, "a", 18, 60000), MR_E_STATE,
                 "position 18 went to the dead letters of a (it waits behind another event");
    assert_ok(mr_consumer_wait(conn, conf, "a", 19, 0));
    assert_ok(mr_consumer_wait(conn, conf, "a", 0, 0));
}

static void audit(PGconn *conn, const char *consumer, const char *action, const char *detail)
{
    char sql[512];
    (void)snprintf(sql, sizeof(sql),
                   "INSERT INTO millrace.consumer_audit (consumer_name, action, actor, reason,"
                   " detail) VALUES ('%s', '%s', 'ann', 'a test order', '%s')",
                   consumer, action, detail);
    run(conn, sql);
}

/* The checkpoint is beyond it, but nobody handled it. */
static void what_was_passed_over_is_not_applied(void **state)
{
    PGconn *conn = conn_of(state);
    move_to(conn, "a", 20);
    audit(conn, "a", "pause", "{\"position\": 17}");
    audit(conn, "b", "skip", "{\"position\": 17}");
    assert_ok(mr_consumer_wait(conn, conf, "a", 17, 0));
    audit(conn, "a", "skip", "{\"position\": 17}");
    assert_error(mr_consumer_wait(conn, conf, "a", 17, 0), MR_E_STATE,
                 "consumer a is beyond position 17 without having applied it: it was skipped by "
                 "ann at ");
    assert_error(mr_consumer_wait(conn, conf, "a", 17, 0), MR_E_STATE, ": a test order");
    assert_ok(mr_consumer_wait(conn, conf, "a", 16, 0));
    assert_ok(mr_consumer_wait(conn, conf, "a", 18, 0));
    /* A reset that ended before it does not bring it back, one from beyond it does. */
    audit(conn, "a", "reset", "{\"from\": 16, \"to\": 10}");
    assert_error(mr_consumer_wait(conn, conf, "a", 17, 0), MR_E_STATE, "skipped");
    audit(conn, "a", "reset", "{\"from\": 20, \"to\": 10}");
    assert_ok(mr_consumer_wait(conn, conf, "a", 17, 0));
    audit(conn, "a", "drop", "{\"position\": 17}");
    assert_error(mr_consumer_wait(conn, conf, "a", 17, 0), MR_E_STATE,
                 "dropped from the dead letters by ann");
    audit(conn, "a", "reset", "{\"from\": 12, \"to\": 19}");
    assert_ok(mr_consumer_wait(conn, conf, "a", 12, 0));
    assert_error(mr_consumer_wait(conn, conf, "a", 13, 0), MR_E_STATE, "passed over by a reset");
    assert_error(mr_consumer_wait(conn, conf, "a", 19, 0), MR_E_STATE, "passed over by a reset");
    assert_ok(mr_consumer_wait(conn, conf, "a", 20, 0));
    /* Of slots: a skip is one slot's, a reset of one says nothing of the others. */
    move_to(conn, "p#0/2", 20);
    move_to(conn, "p#1/2", 20);
    audit(conn, "p#1/2", "skip", "{\"position\": 5}");
    assert_error(mr_consumer_wait(conn, conf, "p", 5, 0), MR_E_STATE, "consumer p#1/2 is beyond");
    audit(conn, "p#0/2", "reset", "{\"from\": 6, \"to\": 9}");
    assert_ok(mr_consumer_wait(conn, conf, "p", 8, 0));
    assert_error(mr_consumer_wait(conn, conf, "p#0/2", 8, 0), MR_E_STATE, "by a reset");
    audit(conn, "p#1/2", "reset", "{\"from\": 6, \"to\": 9}");
    assert_error(mr_consumer_wait(conn, conf, "p", 8, 0), MR_E_STATE, "by a reset");
}

static void every_slot_counts(void **state)
{
    PGconn *conn = conn_of(state);
    move_to(conn, "p#0/3", 20);
    move_to(conn, "p#1/3", 18);
    assert_ok(mr_consumer_wait(conn, conf, "p#0/3", 20, 0));
    assert_error(mr_consumer_wait(conn, conf, "p#1/3", 20, 0), MR_E_TIMEOUT, "it is at 18");
    /* The third has not begun. */
    assert_error(mr_consumer_wait(conn, conf, "p", 17, 0), MR_E_TIMEOUT, "it has not begun");
    move_to(conn, "p#2/3", 16);
    assert_error(mr_consumer_wait(conn, conf, "p", 17, 0), MR_E_TIMEOUT,
                 "furthest behind is p#2/3");
    move_to(conn, "p#2/3", 17);
    assert_ok(mr_consumer_wait(conn, conf, "p", 17, 0));
    /* A pause matters where the position is not reached yet. */
    pause_consumer(conn, "p#0/3", "command", "ann", "NULL");
    assert_error(mr_consumer_wait(conn, conf, "p", 19, 0), MR_E_TIMEOUT, "p#2/3");
    pause_consumer(conn, "p#1/3", "command", "ann", "NULL");
    assert_error(mr_consumer_wait(conn, conf, "p", 19, 60000), MR_E_STATE, "p#1/3 is paused");
    add_letter(conn, "p#1/3", 5, "poison");
    assert_error(mr_consumer_wait(conn, conf, "p", 5, 60000), MR_E_STATE, "dead letters of p#1/3");
    /* A name that another one begins with is another consumer. */
    move_to(conn, "p#", 0);
    move_to(conn, "p2", 0);
    assert_ok(mr_consumer_wait(conn, conf, "p", 17, 0));
}

static void a_consumer_that_has_not_begun(void **state)
{
    PGconn *conn = conn_of(state);
    assign(conn, "new", "NULL");
    assert_ok(mr_consumer_wait(conn, conf, "new", 0, 0));
    assert_error(mr_consumer_wait(conn, conf, "new", 1, 5), MR_E_TIMEOUT, "it has not begun");
    add_worker(conn, A, "{}", "{\"locks\": [\"mine\"]}");
    assert_error(mr_consumer_wait(conn, conf, "mine", 1, 0), MR_E_TIMEOUT, "it has not begun");
}

typedef struct waiting {
    PGconn *conn;
    int64_t position;
    atomic_bool done;
    mr_error *error;
} waiting;

static void *wait_there(void *argument)
{
    waiting *w = argument;
    w->error = mr_consumer_wait(w->conn, conf, "p", w->position, 60000);
    atomic_store(&w->done, true);
    return NULL;
}

/* It returns when another connection moves the checkpoint, and not before. */
static void wakes_when_it_moves(void **state)
{
    PGconn *conn = conn_of(state);
    move_to(conn, "p#0/2", 0);
    move_to(conn, "p#1/2", 0);
    waiting waits[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        waits[i] = (waiting){.conn = scratch_connect(*state), .position = 100 * (i + 1)};
        assert_int_equal(pthread_create(&threads[i], NULL, wait_there, &waits[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        for (int step = 100 * i + 1; step <= 100 * (i + 1); step++)
            move_to(conn, "p#0/2", step);
        assert_false(atomic_load(&waits[i].done));
        move_to(conn, "p#1/2", 100 * (i + 1) - 1);
        assert_false(atomic_load(&waits[i].done));
        move_to(conn, "p#1/2", 100 * (i + 1));
        (void)pthread_join(threads[i], NULL);
        assert_ok(waits[i].error);
        PQfinish(waits[i].conn);
    }
}

static void a_pause_ends_a_running_wait(void **state)
{
    PGconn *conn = conn_of(state);
    move_to(conn, "p", 0);
    waiting w = {.conn = scratch_connect(*state), .position = 10};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wait_there, &w), 0);
    move_to(conn, "p", 9);
    pause_consumer(conn, "p", "failure", "worker 1", "'boom'");
    (void)pthread_join(thread, NULL);
    assert_error(w.error, MR_E_STATE, "boom; it is at 9");
    PQfinish(w.conn);
}

static void a_lost_connection_ends_it(void **state)
{
    PGconn *conn = conn_of(state);
    move_to(conn, "p", 0);
    waiting w = {.conn = scratch_connect(*state), .position = 10};
    pthread_t thread;
    int backend = PQbackendPID(w.conn);
    assert_int_equal(pthread_create(&thread, NULL, wait_there, &w), 0);
    char sql[64];
    (void)snprintf(sql, sizeof(sql), "SELECT pg_terminate_backend(%d)", backend);
    run(conn, sql);
    (void)pthread_join(thread, NULL);
    assert_int_equal(mr_error_code(w.error), MR_E_CONNECT);
    mr_error_free(w.error);
    PQfinish(w.conn);
}

static void without_the_tables(void **state)
{
    PGconn *conn = conn_of(state);
    run(conn, "SET client_min_messages = warning; DROP SCHEMA millrace CASCADE");
    char *json = NULL;
    PGresult *rows = NULL;
    assert_error(mr_consumer_wait(conn, conf, "a", 1, 0), MR_E_SCHEMA, "schema apply");
    assert_error(mr_health(conn, conf, &json), MR_E_SCHEMA, "schema apply");
    assert_error(mr_list(conn, conf, "audit", &rows), MR_E_SCHEMA, "schema apply");
    assert_error(mr_list(conn, conf, "audit:a", &rows), MR_E_SCHEMA, "schema apply");
    assert_null(json);
    assert_null(rows);
}

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        WATCH(reached_at_once),
        WATCH(wrong_calls),
        WATCH(timeouts_say_why),
        WATCH(paused_ends_a_wait),
        WATCH(dead_letters_are_not_applied),
        WATCH(what_was_passed_over_is_not_applied),
        WATCH(every_slot_counts),
        WATCH(a_consumer_that_has_not_begun),
        WATCH(wakes_when_it_moves),
        WATCH(a_pause_ends_a_running_wait),
        WATCH(a_lost_connection_ends_it),
        WATCH(without_the_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
