/* The kit for users' tests with a real database: what commits, what does not, sql handlers, a
 * server that goes away. */
#include "scratch.h"

#include <stdio.h>
#include <string.h>

static void conninfo_of(const scratch *s, char *out, size_t size)
{
    /* The scratch's conninfo is a URI with the database "postgres": swap the name in. */
    const char *name = strstr(s->conninfo, "/postgres?");
    if (name != NULL)
        (void)snprintf(out, size, "%.*s/%s%s", (int)(name - s->conninfo), s->conninfo, s->name,
                       name + strlen("/postgres"));
    else
        (void)snprintf(out, size, "%s dbname=%s", s->conninfo, s->name);
}

static mr_error *connect_test(const scratch *s, mr_test *test)
{
    char conninfo[1200];
    conninfo_of(s, conninfo, sizeof(conninfo));
    return mr_test_database(test, conninfo);
}

static mr_test *make(mr_consumer *consumer)
{
    mr_test *test = NULL;
    assert_ok(mr_test_new(consumer, &test));
    return test;
}

static void append(mr_test *test, const char *id, const char *payload)
{
    assert_ok(mr_test_append(test, 0, "Order", id, "Placed", payload, strlen(payload), NULL));
}

#define assert_run(test, wanted)                                                                   \
    do {                                                                                           \
        mr_test_outcome outcome_ = MR_TEST_IDLE;                                                   \
        assert_ok(mr_test_run(test, &outcome_));                                                   \
        assert_string_equal(mr_test_outcome_name(outcome_), mr_test_outcome_name(wanted));         \
    } while (0)

/* Inserts the id; its rows see what was inserted before in the same batch. */
static mr_error *insert_and_count(mr_tx *tx, const mr_event *event, void *user)
{
    const char *const values[] = {mr_event_aggregate_id(event)};
    mr_error *error = mr_tx_exec(tx, "INSERT INTO t VALUES ($1)", 1, values);
    PGresult *rows = NULL;
    if (error == NULL)
        error = mr_tx_query(tx, "SELECT count(*) FROM t", 0, NULL, &rows);
    if (error == NULL)
        (void)snprintf(user, 16, "%s", PQgetvalue(rows, 0, 0));
    PQclear(rows);
    return error;
}

static void a_batch_is_a_transaction(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE TABLE t (id text PRIMARY KEY)");
    char seen[16] = "";
    mr_consumer *consumer = mr_consumer_new("c");
    mr_consumer_on_event(consumer, insert_and_count, seen, NULL);
    assert_ok(mr_consumer_set(consumer, "on_failure", "dead_letter"));
    assert_ok(mr_consumer_set(consumer, "max_retries", "0"));
    mr_test *test = make(consumer);
    assert_ok(connect_test(s, test));
    append(test, "a", "");
    append(test, "b", "");
    assert_run(test, MR_TEST_COMMITTED);
    assert_string_equal(seen, "2");
    assert_int_equal(number(s->conn, "SELECT count(*) FROM t"), 2);
    assert_int_equal(mr_test_statement_count(test), 0); /* nothing is written down */
    append(test, "c", "");
    append(test, "a", ""); /* there already */
    append(test, "d", "");
    assert_run(test, MR_TEST_FAILED);
    assert_string_equal(mr_error_sqlstate(mr_test_error(test)), "23505");
    assert_int_equal(number(s->conn, "SELECT count(*) FROM t"), 2);
    assert_run(test, MR_TEST_FAILED);
    assert_int_equal(mr_test_checkpoint(test), 3);
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(number(s->conn, "SELECT count(*) FROM t"), 4);
    assert_int_equal(mr_test_letter_count(test), 1);
    assert_int_equal(mr_test_letter_position(test, 0), 4);
    assert_string_equal(value(s->conn, "SELECT to_regnamespace('millrace')"), ""); /* none needed */
    mr_test_free(test);
}

static void sql_handlers_run(void **state)
{
    scratch *s = *state;
    mr_consumer *consumer = mr_consumer_new("c");
    assert_ok(mr_consumer_set(consumer, "sql",
                              "INSERT INTO t VALUES (:global_position, :data ->> 'a', "
                              ":aggregate_version, :created_at)"));
    mr_test *test = make(consumer);
    append(test, "o", "{\"a\": \"x\"}");
    append(test, "o", "{\"a\": \"y\"}");
    assert_error(connect_test(s, test), MR_E_CONFIG, "consumer 'c'"); /* the table is missing */
    run(s->conn, "CREATE TABLE t (position bigint, a text, version bigint, at timestamptz)");
    assert_ok(connect_test(s, test));
    assert_run(test, MR_TEST_COMMITTED);
    assert_string_equal(value(s->conn, "SELECT string_agg(position || a || version, ' ') FROM t"),
                        "1x1 2y2");
    assert_string_equal(value(s->conn, "SELECT min(at AT TIME ZONE 'UTC') FROM t"),
                        "2026-01-01 00:00:00");
    append(test, "o", "no json");
    assert_run(test, MR_TEST_PAUSED); /* it is alone, and bad for good */
    mr_test_free(test);
}

static void a_lost_server_is_nobodys_fault(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE TABLE t (id text PRIMARY KEY)");
    char seen[16] = "";
    mr_consumer *consumer = mr_consumer_new("c");
    mr_consumer_on_event(consumer, insert_and_count, seen, NULL);
    mr_test *test = make(consumer);
    assert_ok(connect_test(s, test));
    append(test, "a", "");
    assert_run(test, MR_TEST_COMMITTED);
    run(s->conn, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                 " WHERE application_name = 'millrace test' AND datname = current_database()");
    append(test, "b", "");
    assert_run(test, MR_TEST_FAILED);
    assert_false(mr_test_paused(test));
    assert_true(mr_test_wait(test) > 0);
    mr_test_advance(test, mr_test_wait(test));
    assert_run(test, MR_TEST_COMMITTED);
    assert_string_equal(seen, "2");
    mr_test_free(test);
}

static void detached_ones_save(void **state)
{
    scratch *s = *state;
    mr_consumer *consumer = mr_consumer_new("c");
    assert_ok(
        mr_consumer_set(consumer, "exec", "sh,-c,while read l; do echo '{\"ok\":true}'; done"));
    assert_ok(mr_consumer_set(consumer, "detached", "true"));
    mr_test *test = make(consumer);
    assert_ok(connect_test(s, test));
    append(test, "a", "");
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(mr_test_checkpoint(test), 1);
    mr_test_free(test);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        TEST(a_batch_is_a_transaction),
        TEST(sql_handlers_run),
        TEST(a_lost_server_is_nobodys_fault),
        TEST(detached_ones_save),
    };
    return cmocka_run_group_tests_name("testkit_pg", tests, NULL, NULL);
}
