/* The kit for users' tests: queries, what is written down, every kind of consumer, misuse. */
#include "testkit_fixture.h"

/* ---- Queries and what must not be sent ------------------------------------------------------- */

typedef struct asker {
    mr_code answer; /* MR_OK: rows */
    int64_t from;   /* rows also before this position */
    int64_t position;
    bool swallows, ends;
    int asked;
} asker;

static mr_error *asks(mr_tx *tx, const mr_event *event, void *user)
{
    asker *a = user;
    a->position = mr_event_position(event);
    if (a->ends)
        return mr_tx_exec(tx, "  COMMIT", 0, NULL);
    PGresult *rows = NULL;
    const char *const values[] = {"x"};
    const int lengths[] = {1}, formats[] = {1};
    mr_error *error =
        mr_tx_exec_params(tx, "UPDATE t SET a = $1", 1, NULL, values, lengths, formats);
    if (error == NULL)
        error = mr_tx_query(tx, "SELECT n FROM t WHERE id = $1", 1, values, &rows);
    if (error == NULL) {
        const char *const found[] = {PQgetvalue(rows, 0, 0)};
        error = mr_tx_exec(tx, "INSERT INTO u VALUES ($1)", 1, found);
    }
    PQclear(rows);
    if (!a->swallows)
        return error;
    mr_error_free(error);
    return NULL;
}

static mr_error *answer(void *user, const char *sql, int count, const char *const *values,
                        PGresult **rows)
{
    asker *a = user;
    a->asked++;
    assert_string_equal(sql, "SELECT n FROM t WHERE id = $1");
    assert_int_equal(count, 1);
    assert_string_equal(values[0], "x");
    if (a->answer != MR_OK && a->position >= a->from)
        return a->answer == MR_E_USAGE ? NULL : mr_error_new(a->answer, true, "no answer");
    char name[] = "n", value[] = "42";
    PGresAttDesc column = {.name = name};
    *rows = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    assert_true(PQsetResultAttrs(*rows, 1, &column));
    assert_true(PQsetvalue(*rows, 0, 0, value, 2));
    return NULL;
}

static mr_test *make_asker(asker *a)
{
    mr_consumer *consumer = mr_consumer_new("c");
    mr_consumer_on_event(consumer, asks, a, NULL);
    mr_test *test = NULL;
    fine(mr_test_new(consumer, &test));
    append(test, 0, "o");
    return test;
}

static void queries_are_answered(void **state)
{
    (void)state;
    asker a = {0};
    mr_test *test = make_asker(&a);
    assert_run(test, MR_TEST_FAILED);
    assert_non_null(strstr(mr_error_message(mr_test_error(test)), "mr_test_on_query()"));
    assert_int_equal(mr_test_statement_count(test), 0);
    mr_test_on_query(test, answer, &a);
    mr_test_advance(test, mr_test_wait(test));
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(a.asked, 1);
    assert_int_equal(mr_test_statement_count(test), 3); /* the query too */
    assert_string_equal(mr_test_parameter(test, 0, 0), "x");
    assert_string_equal(mr_test_statement(test, 1), "SELECT n FROM t WHERE id = $1");
    assert_string_equal(mr_test_parameter(test, 2, 0), "42");
    mr_test_free(test);
}

static void a_failed_query_fails_the_batch(void **state)
{
    (void)state;
    asker a = {.answer = MR_E_DB, .swallows = true};
    mr_test *test = make_asker(&a);
    mr_test_on_query(test, answer, &a);
    assert_run(test, MR_TEST_FAILED); /* a server's transaction would be aborted, too */
    assert_string_equal(mr_error_message(mr_test_error(test)), "no answer");
    a.answer = MR_E_USAGE; /* sets no rows */
    mr_test_advance(test, mr_test_wait(test));
    assert_run(test, MR_TEST_FAILED);
    assert_non_null(strstr(mr_error_message(mr_test_error(test)), "set no rows"));
    mr_test_free(test);
}

/* A lost connection is held against nobody, however often it happens. */
static void a_lost_connection_is_nobodys_fault(void **state)
{
    (void)state;
    asker a = {.answer = MR_E_CONNECT};
    mr_test *test = make_asker(&a);
    mr_test_on_query(test, answer, &a);
    for (int i = 0; i < 30; i++) {
        assert_run(test, MR_TEST_FAILED);
        assert_int_equal(mr_test_wait(test), i < 6 ? 100000 << i : 5000000);
        mr_test_advance(test, mr_test_wait(test));
    }
    a.answer = MR_OK;
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(mr_test_statement_count(test), 3);
    mr_test_free(test);
}

/* Nothing of a transaction survives its connection, savepoints or not. */
static void a_lost_connection_takes_the_savepoints_along(void **state)
{
    (void)state;
    asker a = {.answer = MR_E_DB, .from = 2};
    mr_test *test = make_asker(&a);
    append(test, 0, "o");
    mr_test_on_query(test, answer, &a);
    assert_run(test, MR_TEST_FAILED);
    mr_test_advance(test, mr_test_wait(test));
    assert_run(test, MR_TEST_FAILED); /* from now on, an event at a time */
    assert_int_equal(mr_test_handled(test), 0);
    a.answer = MR_E_CONNECT;
    assert_run(test, MR_TEST_FAILED);
    assert_int_equal(mr_test_handled(test), 0);
    assert_int_equal(mr_test_statement_count(test), 0);
    a.answer = MR_OK;
    mr_test_advance(test, mr_test_wait(test));
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(mr_test_statement_count(test), 6);
    mr_test_free(test);
}

static void a_handler_must_not_end_the_transaction(void **state)
{
    (void)state;
    asker a = {.ends = true};
    mr_test *test = make_asker(&a);
    assert_run(test, MR_TEST_FAILED);
    assert_non_null(strstr(mr_error_message(mr_test_error(test)), "'commit'"));
    assert_int_equal(mr_test_checkpoint(test), 0);
    mr_test_free(test);
}

/* ---- Other kinds of consumers ---------------------------------------------------------------- */

static void detached_ones_have_no_transaction(void **state)
{
    (void)state;
    diary d = {.bad = 2};
    mr_test *test = make(&d, false, OPTIONS("detached", "true", "on_failure", "dead_letter"));
    append_many(test, 3);
    assert_run(test, MR_TEST_FAILED);
    assert_int_equal(mr_test_checkpoint(test), 1); /* what was done outside stays done */
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(mr_test_checkpoint(test), 3);
    assert_int_equal(d.count, 3);
    assert_int_equal(mr_test_letter_position(test, 0), 2);
    assert_int_equal(d.letters, 1);
    assert_int_equal(mr_test_statement_count(test), 0);
    mr_test_free(test);
}

static void slots_share_the_log(void **state)
{
    (void)state;
    diary d = {0};
    mr_test *test = make(&d, false, OPTIONS("partitions", "3"));
    int wanted[3] = {0};
    for (int i = 0; i < 30; i++) {
        char id[8];
        (void)snprintf(id, sizeof(id), "o-%d", i);
        append(test, 0, id);
        wanted[mr_partition_of("Order", id, 3)]++;
    }
    for (int slot = 0; slot < 3; slot++) {
        fine(mr_test_slot(test, slot));
        assert_int_equal(mr_test_checkpoint(test), 0);
        assert_run(test, MR_TEST_COMMITTED);
        assert_int_equal(mr_test_handled(test), wanted[slot]);
        assert_int_equal(mr_test_checkpoint(test), 30);
    }
    assert_int_equal(d.count, 30);
    refused(mr_test_slot(test, 3), MR_E_USAGE, "slots 0 to 2");
    refused(mr_test_slot(test, -1), MR_E_USAGE, "slots 0 to 2");
    mr_test_free(test);
}

static void count_lines(void *user, mr_level level, const char *line)
{
    (void)level;
    *(int *)user += strstr(line, "hello") != NULL;
}

static mr_test *make_exec(const char *script)
{
    /* A list in one string: its items, commas between them. */
    char command[400];
    (void)snprintf(command, sizeof(command), "sh,-c,%s", script);
    mr_consumer *consumer = mr_consumer_new("c");
    fine(mr_consumer_set(consumer, "exec", command));
    mr_test *test = NULL;
    fine(mr_test_new(consumer, &test));
    return test;
}

static void exec_handlers_write_through_the_record(void **state)
{
    (void)state;
    mr_test *test = make_exec("echo hello >&2; while read l; do echo "
                              "'{\"ok\":true\\,\"sql\":[{\"text\":\"DELETE FROM t\"}]}'; done");
    int lines = 0;
    mr_test_on_log(test, count_lines, &lines);
    append_many(test, 3);
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(mr_test_statement_count(test), 3);
    assert_string_equal(mr_test_statement(test, 2), "DELETE FROM t");
    mr_test_free(test);
    assert_true(lines > 0);
    test = make_exec("exit 3");
    append_many(test, 1);
    assert_run(test, MR_TEST_FAILED);
    assert_int_equal(mr_test_checkpoint(test), 0);
    mr_test_free(test);
}

static const char *plugin_path;

static void plugins_are_loaded(void **state)
{
    (void)state;
    if (plugin_path == NULL)
        skip();
    mr_consumer *consumer = mr_consumer_new("c");
    fine(mr_consumer_set(consumer, "plugin", plugin_path));
    fine(mr_consumer_set(consumer, "plugin_config", "counts"));
    mr_test *test = NULL;
    fine(mr_test_new(consumer, &test));
    append_many(test, 2);
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(mr_test_handled(test), 2);
    assert_non_null(strstr(mr_test_statement(test, 1), "INSERT INTO counts"));
    assert_written(test, "Placed Placed");
    mr_test_free(test);
}

/* ---- Misuse --------------------------------------------------------------------------------- */

static mr_error *runs_itself(mr_tx *tx, const mr_event *event, void *user)
{
    (void)tx;
    (void)event;
    diary *d = user;
    refused(mr_test_run(d->test, NULL), MR_E_STATE, "from within a batch");
    refused(mr_test_slot(d->test, 0), MR_E_STATE, "while a batch runs");
    refused(mr_test_database(d->test, ""), MR_E_STATE, "while a batch runs");
    mr_test_forget(d->test);
    if (d->count++ == 0)
        append(d->test, 0, "o"); /* which is fine: it comes with the next batch */
    return NULL;
}

static void misuse_is_refused(void **state)
{
    (void)state;
    diary d = {0};
    mr_test *test = NULL;
    refused(mr_test_new(NULL, &test), MR_E_USAGE, "needs a consumer");
    mr_consumer *consumer = mr_consumer_new("");
    mr_consumer_on_event(consumer, on_event, &d, freed);
    refused(mr_test_new(consumer, &test), MR_E_CONFIG, "no name");
    assert_int_equal(d.frees, 1); /* taken, also on failure */
    refused(mr_test_new(mr_consumer_new("c"), &test), MR_E_CONFIG, "no handler");
    consumer = mr_consumer_new("c");
    fine(mr_consumer_set(consumer, "sql_batch", "INSERT INTO t SELECT 1 FROM batch"));
    refused(mr_test_new(consumer, &test), MR_E_USAGE, "sql_batch");
    consumer = mr_consumer_new("c");
    fine(mr_consumer_set(consumer, "plugin", "/nowhere/plugin.so"));
    refused(mr_test_new(consumer, &test), MR_E_CONFIG, "plugin");
    consumer = mr_consumer_new("c");
    fine(mr_consumer_set(consumer, "exec", "/nowhere/program"));
    refused(mr_test_new(consumer, &test), MR_E_CONFIG, "exec");
    assert_null(test);
    consumer = mr_consumer_new("c");
    fine(mr_consumer_set(consumer, "sql", "INSERT INTO t VALUES (:global_position)"));
    fine(mr_test_new(consumer, &test));
    refused(mr_test_run(test, NULL), MR_E_STATE, "mr_test_database()");
    refused(mr_test_database(test, NULL), MR_E_USAGE, "connection string");
    refused(mr_test_database(test, "host=/nowhere connect_timeout=1"), MR_E_CONNECT, "");
    refused(mr_test_run(test, NULL), MR_E_STATE, "mr_test_database()");
    mr_test_free(test);
    mr_test_free(NULL);
}

static void appends_are_checked(void **state)
{
    (void)state;
    diary d = {0};
    mr_consumer *consumer = mr_consumer_new("c");
    mr_consumer_on_event(consumer, runs_itself, &d, freed);
    mr_test *test = NULL;
    fine(mr_test_new(consumer, &test));
    d.test = test;
    int64_t at = 99;
    refused(mr_test_append(test, -1, "A", "a", "E", NULL, 0, &at), MR_E_USAGE, "begin at 1");
    refused(mr_test_append(test, 0, NULL, "a", "E", NULL, 0, &at), MR_E_USAGE, "aggregate_type");
    refused(mr_test_append(test, 0, "A", NULL, "E", NULL, 0, &at), MR_E_USAGE, "aggregate_id");
    refused(mr_test_append(test, 0, "A", "a", "\xff", NULL, 0, &at), MR_E_USAGE, "UTF-8");
    refused(mr_test_append(test, 0, "A", "a", "E", NULL, 1, &at), MR_E_USAGE, "payload");
    assert_int_equal(at, 99);
    append(test, 2, "a");
    refused(mr_test_append(test, 2, "A", "a", "E", NULL, 0, &at), MR_E_USAGE, "at position 2");
    mr_test_settle(test);
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(d.count, 1);
    assert_int_equal(mr_test_checkpoint(test), 2);
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(mr_test_checkpoint(test), 3);
    assert_null(mr_test_statement(test, 0));
    assert_null(mr_test_parameter(test, 0, 0));
    assert_int_equal(mr_test_parameter_count(test, 0), 0);
    assert_string_equal(mr_test_outcome_name((mr_test_outcome)77), "?");
    mr_test_free(test);
    assert_int_equal(d.frees, 1);
}

int main(int argc, char **argv)
{
    plugin_path = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queries_are_answered),
        cmocka_unit_test(a_failed_query_fails_the_batch),
        cmocka_unit_test(a_lost_connection_is_nobodys_fault),
        cmocka_unit_test(a_lost_connection_takes_the_savepoints_along),
        cmocka_unit_test(a_handler_must_not_end_the_transaction),
        cmocka_unit_test(detached_ones_have_no_transaction),
        cmocka_unit_test(slots_share_the_log),
        cmocka_unit_test(exec_handlers_write_through_the_record),
        cmocka_unit_test(plugins_are_loaded),
        cmocka_unit_test(misuse_is_refused),
        cmocka_unit_test(appends_are_checked),
    };
    return cmocka_run_group_tests_name("testkit_use", tests, NULL, NULL);
}
