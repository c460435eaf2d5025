/* Tests of a handler, as they would stand in an application's own tests: no server, no threads, no
 * waiting. docs/testing-your-handlers.md explains them one by one.
 *
 *   test_handler [URI]        with a URI also the test that needs a database
 *
 * The handler keeps the balance of accounts. Any test framework will do; this has CHECK. */
#include <millrace/millrace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The handler under test ----------------------------------------------------------------- */

/* An overdraft needs somebody's permission, which is asked for over the network. */
typedef struct bank {
    bool reachable;
} bank;

static mr_error *on_event(mr_tx *tx, const mr_event *event, void *user)
{
    const bank *b = user;
    char *end = NULL;
    long cents = strtol(mr_event_payload(event, NULL), &end, 10);
    if (end == mr_event_payload(event, NULL) || *end != '\0')
        return mr_error_new(MR_E_HANDLER, false, "'%s' is no amount",
                            mr_event_payload(event, NULL));
    if (cents < 0 && !b->reachable)
        return mr_error_new(MR_E_HANDLER, true, "the bank does not answer");
    const char *const values[] = {mr_event_aggregate_id(event), mr_event_payload(event, NULL)};
    return mr_tx_exec(tx,
                      "INSERT INTO balances AS b (account, cents) VALUES ($1, $2::bigint)"
                      " ON CONFLICT (account) DO UPDATE SET cents = b.cents + excluded.cents",
                      2, values);
}

/* Another one, which looks before it writes: a letter to whoever is in debt now. */
static mr_error *remind(mr_tx *tx, const mr_event *event, void *user)
{
    (void)user;
    const char *const account[] = {mr_event_aggregate_id(event)};
    PGresult *rows = NULL;
    mr_error *error =
        mr_tx_query(tx, "SELECT cents FROM balances WHERE account = $1", 1, account, &rows);
    if (error != NULL)
        return error;
    bool debt = PQntuples(rows) == 1 && PQgetvalue(rows, 0, 0)[0] == '-';
    PQclear(rows);
    return debt ? mr_tx_exec(tx, "INSERT INTO reminders (account) VALUES ($1)", 1, account) : NULL;
}

/* ---- A few lines instead of a test framework ------------------------------------------------- */

static int failures;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        bool held_ = (condition);                                                                  \
        failures += held_ ? 0 : 1;                                                                 \
        (void)printf("%s %s\n", held_ ? "ok  " : "FAIL", #condition);                              \
    } while (0)

/* For what must work before there is anything to check. */
static void must(mr_error *error)
{
    if (error == NULL)
        return;
    (void)fprintf(stderr, "test_handler: %s\n", mr_error_message(error));
    exit(1);
}

static mr_test_outcome run(mr_test *test)
{
    mr_test_outcome outcome = MR_TEST_IDLE;
    must(mr_test_run(test, &outcome));
    return outcome;
}

static void append(mr_test *test, int64_t position, const char *account, const char *cents)
{
    must(mr_test_append(test, position, "Account", account, "Booked", cents, strlen(cents), NULL));
}

static mr_consumer *balances(bank *b)
{
    mr_consumer *consumer = mr_consumer_new("balances_v1");
    mr_consumer_on_event(consumer, on_event, b, NULL);
    return consumer;
}

/* ---- The tests ------------------------------------------------------------------------------- */

static void happy_path(void)
{
    bank b = {.reachable = true};
    mr_test *test = NULL;
    must(mr_test_new(balances(&b), &test));
    append(test, 0, "alice", "1000");
    append(test, 0, "bob", "-250");

    CHECK(run(test) == MR_TEST_COMMITTED);
    CHECK(mr_test_handled(test) == 2);
    CHECK(mr_test_checkpoint(test) == 2);

    CHECK(mr_test_statement_count(test) == 2);
    CHECK(strncmp(mr_test_statement(test, 0), "INSERT INTO balances", 20) == 0);
    CHECK(strcmp(mr_test_parameter(test, 1, 0), "bob") == 0);
    CHECK(strcmp(mr_test_parameter(test, 1, 1), "-250") == 0);

    CHECK(run(test) == MR_TEST_IDLE);
    mr_test_free(test);
}

static void a_hole(void)
{
    bank b = {.reachable = true};
    mr_test *test = NULL;
    must(mr_test_new(balances(&b), &test));
    append(test, 1, "alice", "1");
    append(test, 3, "alice", "3"); /* somebody has drawn 2 and not committed yet */
    append(test, 5, "alice", "5");

    CHECK(run(test) == MR_TEST_COMMITTED);
    CHECK(run(test) == MR_TEST_BLOCKED);
    CHECK(mr_test_checkpoint(test) == 1);

    append(test, 2, "alice", "2"); /* now they have */
    CHECK(run(test) == MR_TEST_COMMITTED);
    CHECK(mr_test_checkpoint(test) == 3);

    mr_test_settle(test); /* and whoever drew 4 has rolled back */
    CHECK(run(test) == MR_TEST_COMMITTED);
    CHECK(mr_test_checkpoint(test) == 5);
    mr_test_free(test);
}

static void poison_becomes_a_dead_letter(void)
{
    bank b = {.reachable = true};
    mr_consumer *consumer = balances(&b);
    must(mr_consumer_set(consumer, "on_failure", "dead_letter"));
    mr_test *test = NULL;
    must(mr_test_new(consumer, &test));
    append(test, 0, "alice", "1");
    append(test, 0, "alice", "many");
    append(test, 0, "alice", "3");

    CHECK(run(test) == MR_TEST_FAILED); /* the whole batch */
    CHECK(mr_test_statement_count(test) == 0);
    CHECK(run(test) == MR_TEST_FAILED); /* one by one: what came before the bad one is kept */
    CHECK(mr_test_handled(test) == 1);
    CHECK(run(test) == MR_TEST_COMMITTED);
    CHECK(mr_test_checkpoint(test) == 3);

    CHECK(mr_test_letter_count(test) == 1);
    CHECK(mr_test_letter_position(test, 0) == 2);
    CHECK(strcmp(mr_test_letter_error(test, 0), "'many' is no amount") == 0);
    CHECK(mr_test_statement_count(test) == 2);
    mr_test_free(test);
}

static void poison_pauses(void)
{
    bank b = {.reachable = true};
    mr_test *test = NULL;
    must(mr_test_new(balances(&b), &test)); /* on_failure: pause is the default */
    append(test, 0, "alice", "many");
    append(test, 0, "alice", "2");

    while (run(test) == MR_TEST_FAILED)
        mr_test_advance(test, mr_test_wait(test));
    CHECK(mr_test_paused(test));
    CHECK(mr_test_checkpoint(test) == 0);
    CHECK(mr_error_code(mr_test_error(test)) == MR_E_HANDLER);

    must(mr_test_skip(test, 1)); /* or mend it, and mr_test_resume() */
    CHECK(run(test) == MR_TEST_COMMITTED);
    CHECK(mr_test_handled(test) == 1);
    mr_test_free(test);
}

static void retries_take_their_time(void)
{
    bank b = {.reachable = false};
    mr_consumer *consumer = balances(&b);
    must(mr_consumer_set(consumer, "retry_base_delay", "1s"));
    mr_test *test = NULL;
    must(mr_test_new(consumer, &test));
    append(test, 0, "bob", "-1");

    CHECK(run(test) == MR_TEST_FAILED);
    CHECK(mr_test_wait(test) == 1000000);
    CHECK(run(test) == MR_TEST_WAITING);
    mr_test_advance(test, 1000000);
    CHECK(run(test) == MR_TEST_FAILED);
    CHECK(mr_test_wait(test) == 2000000);

    b.reachable = true;
    mr_test_advance(test, 2000000);
    CHECK(run(test) == MR_TEST_COMMITTED);
    CHECK(mr_test_statement_count(test) == 1);
    mr_test_free(test);
}

/* Answers the handler's query: alice owes 5, and there is nobody else. */
static mr_error *one_debtor(void *user, const char *sql, int count, const char *const *values,
                            PGresult **rows)
{
    (void)user;
    (void)sql;
    (void)count;
    char name[] = "cents", debt[] = "-5";
    PGresAttDesc column = {.name = name};
    *rows = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    if (*rows == NULL || !PQsetResultAttrs(*rows, 1, &column) ||
        (strcmp(values[0], "alice") == 0 && !PQsetvalue(*rows, 0, 0, debt, 2)))
        return mr_error_new(MR_E_NOMEM, true, "no memory for the answer");
    return NULL;
}

static void queries(void)
{
    mr_consumer *consumer = mr_consumer_new("reminders_v1");
    mr_consumer_on_event(consumer, remind, NULL, NULL);
    mr_test *test = NULL;
    must(mr_test_new(consumer, &test));
    mr_test_on_query(test, one_debtor, NULL);
    append(test, 0, "alice", "-5");
    append(test, 0, "bob", "5");

    CHECK(run(test) == MR_TEST_COMMITTED);
    CHECK(mr_test_statement_count(test) == 3); /* two queries, one letter */
    CHECK(strncmp(mr_test_statement(test, 1), "INSERT INTO reminders", 21) == 0);
    CHECK(strcmp(mr_test_parameter(test, 1, 0), "alice") == 0);
    mr_test_free(test);
}

static bool is(PGconn *conn, const char *sql, const char *wanted)
{
    PGresult *rows = PQexec(conn, sql);
    must(mr_error_from_result(conn, rows));
    bool same = PQntuples(rows) == 1 && strcmp(PQgetvalue(rows, 0, 0), wanted) == 0;
    PQclear(rows);
    return same;
}

static void on_a_database(const char *uri)
{
    PGconn *conn = NULL;
    must(mr_connect(uri, "test_handler", &conn));
    PQclear(PQexec(conn, "DROP TABLE IF EXISTS balances"));
    PQclear(PQexec(conn, "CREATE TABLE balances (account text PRIMARY KEY, cents bigint)"));

    bank b = {.reachable = true};
    mr_test *test = NULL;
    must(mr_test_new(balances(&b), &test));
    must(mr_test_database(test, uri)); /* from here on statements run for real */
    append(test, 0, "alice", "1000");
    append(test, 0, "alice", "99999999999999999999"); /* more than a bigint holds */

    CHECK(run(test) == MR_TEST_FAILED);
    CHECK(strcmp(mr_error_sqlstate(mr_test_error(test)), "22003") == 0);
    CHECK(is(conn, "SELECT count(*) FROM balances", "0"));
    CHECK(run(test) == MR_TEST_PAUSED);
    CHECK(mr_test_checkpoint(test) == 1);
    CHECK(is(conn, "SELECT cents FROM balances WHERE account = 'alice'", "1000"));
    mr_test_free(test);
    PQclear(PQexec(conn, "DROP TABLE balances"));
    PQfinish(conn);
}

int main(int argc, char **argv)
{
    happy_path();
    a_hole();
    poison_becomes_a_dead_letter();
    poison_pauses();
    retries_take_their_time();
    queries();
    if (argc > 1)
        on_a_database(argv[1]);
    (void)printf(failures == 0 ? "all is well\n" : "%d checks failed\n", failures);
    return failures == 0 ? 0 : 1;
}
