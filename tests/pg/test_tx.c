/* The pipelined transaction: who is blamed, how much fits, what a deadline, a kill or a failed
 * commit leave behind. */
#include "scratch.h"

#include "pg/session.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_bool never;

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

static mr_session *open_session(const scratch *s, bool prepare, const mr_clock *clock,
                                const atomic_bool *cancelled)
{
    char conninfo[1200];
    conninfo_of(s, conninfo, sizeof(conninfo));
    mr_session_params params = {.conn = {.conninfo = conninfo, .application = "test_tx"},
                                .prepare = prepare,
                                .clock = clock,
                                .cancelled = cancelled};
    mr_session *session = NULL;
    assert_ok(mr__session_open(&params, &session));
    return session;
}

static mr_session *plain_session(const scratch *s)
{
    return open_session(s, true, &mr__clock_system, &never);
}

static int64_t in_seconds(int seconds)
{
    return mr__clock_now(&mr__clock_system) + (int64_t)seconds * 1000000;
}

static mr_tx *begin(mr_session *session)
{
    mr_tx *tx = NULL;
    assert_ok(mr__tx_begin(session, in_seconds(120), &tx));
    return tx;
}

static mr_error *insert(mr_tx *tx, int n)
{
    char text[16];
    (void)snprintf(text, sizeof(text), "%d", n);
    const char *values[] = {text};
    return mr_tx_exec(tx, "INSERT INTO t VALUES ($1::int)", 1, values);
}

/* The session still does what it should. */
static void assert_works(mr_session *session, PGconn *conn)
{
    assert_true(mr__session_usable(session));
    int64_t before = number(conn, "SELECT count(*) FROM t");
    mr_tx *tx = begin(session);
    assert_ok(insert(tx, 4711));
    int failed = 99;
    assert_ok(mr__tx_commit(tx, &failed));
    assert_int_equal(failed, -1);
    assert_int_equal(number(conn, "SELECT count(*) FROM t"), before + 1);
    run(conn, "DELETE FROM t WHERE n = 4711");
}

static void blame(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE TABLE t (n int)");
    static const int culprits[] = {0, 1, 62, 63, 64, 65, 500, 998, 999};
    for (int prepare = 0; prepare < 2; prepare++) {
        mr_session *session = open_session(s, prepare == 1, &mr__clock_system, &never);
        for (size_t k = 0; k < sizeof(culprits) / sizeof(culprits[0]); k++) {
            mr_tx *tx = begin(session);
            mr_error *error = NULL;
            for (int i = 0; i < 1000 && error == NULL; i++) {
                mr__tx_tag(tx, i);
                error = insert(tx, i);
                /* One event may have several statements; the second is the one that fails. */
                if (error == NULL && i == culprits[k])
                    error = mr_tx_exec(tx, "SELECT 1 / 0", 0, NULL);
            }
            int failed = 99;
            mr_error *told =
                error == NULL ? mr__tx_commit(tx, &failed) : mr__tx_rollback(tx, &failed);
            mr_error_free(error);
            assert_int_equal(failed, culprits[k]);
            assert_string_equal(mr_error_sqlstate(told), "22012");
            assert_error(told, MR_E_DB, "division by zero");
            assert_int_equal(number(s->conn, "SELECT count(*) FROM t"), 0);
            assert_works(session, s->conn);
        }
        mr__session_close(session);
    }
}

static void first_of_two_failures(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE TABLE t (n int)");
    mr_session *session = plain_session(s);
    mr_tx *tx = begin(session);
    mr__tx_tag(tx, 3);
    assert_ok(mr_tx_exec(tx, "SELECT 1 / 0", 0, NULL));
    mr__tx_tag(tx, 4);
    mr_error_free(mr_tx_exec(tx, "SELECT nonsense", 0, NULL));
    PGresult *rows = NULL;
    mr__tx_tag(tx, 5);
    assert_error(mr_tx_query(tx, "SELECT 2", 0, NULL, &rows), MR_E_DB, "division by zero");
    assert_null(rows);
    /* Whoever ignores the error hears it again, and cannot commit. */
    assert_error(insert(tx, 1), MR_E_DB, "division by zero");
    int failed = 99;
    assert_error(mr__tx_commit(tx, &failed), MR_E_DB, "division by zero");
    assert_int_equal(failed, 3);
    assert_works(session, s->conn);
    mr__session_close(session);
}

static void many_statements(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE TABLE t (n int)");
    mr_session *session = plain_session(s);
    enum { COUNT = 100000 };
    mr_tx *tx = begin(session);
    for (int i = 0; i < COUNT; i++) {
        mr__tx_tag(tx, i);
        assert_ok(insert(tx, i));
    }
    assert_ok(mr__tx_commit(tx, NULL));
    assert_int_equal(number(s->conn, "SELECT count(DISTINCT n) FROM t"), COUNT);
    /* It only wrote, so it waited for the server once, but for what bounds the memory. */
    assert_true(mr__session_round_trips(session) <= 2);
    run(s->conn, "TRUNCATE t");
    assert_works(session, s->conn);
    mr__session_close(session);
}

static void large_results_and_parameters(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE TABLE t (n int)");
    run(s->conn, "CREATE TABLE big (x text)");
    mr_session *session = plain_session(s);
    mr_tx *tx = begin(session);
    for (int i = 0; i < 5000; i++)
        assert_ok(mr_tx_exec(tx, "SELECT repeat('x', 10000)", 0, NULL));
    assert_ok(mr__tx_commit(tx, NULL));

    enum { SIZE = 200000 };
    char *large = malloc(SIZE + 1);
    assert_non_null(large);
    memset(large, 'y', SIZE);
    large[SIZE] = '\0';
    const char *values[] = {large};
    tx = begin(session);
    for (int i = 0; i < 250; i++) {
        assert_ok(mr_tx_exec(tx, "INSERT INTO big VALUES ($1)", 1, values));
        assert_ok(mr_tx_exec(tx, "SELECT repeat('z', 100000)", 0, NULL));
    }
    PGresult *rows = NULL;
    assert_ok(
        mr_tx_query(tx, "SELECT sum(length(x)), repeat('w', 50000000) FROM big", 0, NULL, &rows));
    assert_string_equal(PQgetvalue(rows, 0, 0), "50000000");
    assert_int_equal(PQgetlength(rows, 0, 1), 50000000);
    PQclear(rows);
    assert_ok(mr__tx_commit(tx, NULL));
    free(large);
    assert_works(session, s->conn);
    mr__session_close(session);
}

static void queries_between(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE TABLE t (n int)");
    mr_session *session = plain_session(s);
    mr_tx *tx = begin(session);
    for (int i = 1; i <= 200; i++) {
        assert_ok(insert(tx, i));
        PGresult *rows = NULL;
        assert_ok(mr_tx_query(tx, "SELECT count(*) FROM t", 0, NULL, &rows));
        assert_int_equal(strtol(PQgetvalue(rows, 0, 0), NULL, 10), i);
        PQclear(rows);
    }
    assert_int_equal(number(s->conn, "SELECT count(*) FROM t"), 0);
    assert_null(mr__tx_rollback(tx, NULL));
    assert_int_equal(number(s->conn, "SELECT count(*) FROM t"), 0);
    assert_works(session, s->conn);
    mr__session_close(session);
}

static void a_deadline_cancels(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE TABLE t (n int)");
    mr_session *session = plain_session(s);
    int pid = PQbackendPID(mr__session_conn(session));
    for (int way = 0; way < 3; way++) {
        mr_tx *tx = NULL;
        assert_ok(mr__tx_begin(session, mr__clock_now(&mr__clock_system) + 200000, &tx));
        assert_ok(insert(tx, way));
        mr__tx_tag(tx, 7);
        mr_error *error = NULL;
        PGresult *rows = NULL;
        int failed = 99;
        if (way == 0)
            error = mr_tx_query(tx, "SELECT pg_sleep(600)", 0, NULL, &rows);
        else
            assert_ok(mr_tx_exec(tx, "SELECT pg_sleep(600)", 0, NULL));
        bool given_up = error != NULL || way == 2;
        mr_error_free(error);
        error = given_up ? mr__tx_rollback(tx, &failed) : mr__tx_commit(tx, &failed);
        assert_error(error, MR_E_TIMEOUT, "batch_timeout");
        assert_int_equal(failed, 7);
        assert_int_equal(number(s->conn, "SELECT count(*) FROM pg_stat_activity WHERE"
                                         " wait_event = 'PgSleep'"),
                         0);
        assert_int_equal(number(s->conn, "SELECT count(*) FROM t"), 0);
        assert_works(session, s->conn);
        assert_int_equal(PQbackendPID(mr__session_conn(session)), pid);
    }
    mr__session_close(session);
}

typedef struct flag_raiser {
    PGconn *conn; /* the thread's own while it runs */
    atomic_bool *flag;
} flag_raiser;

/* Raises the flag once the server is in the middle of the statement. */
static void *raise_flag(void *argument)
{
    flag_raiser *r = argument;
    while (number(r->conn, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND"
                           " datname = current_database()") == 0) {
    }
    atomic_store(r->flag, true);
    return NULL;
}

static void a_forced_stop_cancels(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE TABLE t (n int)");
    atomic_bool cancelled = false;
    mr_session *session = open_session(s, true, &mr__clock_system, &cancelled);
    mr_tx *tx = begin(session);
    assert_ok(insert(tx, 1));
    assert_false(mr_tx_cancelled(tx));
    pthread_t thread;
    flag_raiser raiser = {.conn = s->conn, .flag = &cancelled};
    assert_int_equal(pthread_create(&thread, NULL, raise_flag, &raiser), 0);
    assert_ok(mr_tx_exec(tx, "SELECT pg_sleep(600)", 0, NULL));
    assert_error(mr__tx_commit(tx, NULL), MR_E_CANCELLED, "forced stop");
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(mr__session_usable(session));
    assert_int_equal(number(s->conn, "SELECT count(*) FROM t"), 0);
    atomic_store(&cancelled, false);
    assert_works(session, s->conn);
    mr__session_close(session);
}

/* A clock that is before the deadline for so many looks, and beyond it afterwards. */
static _Thread_local int looks_left;

static int64_t counting_now(const mr_clock *clock)
{
    return looks_left-- > 0 ? clock->manual : clock->manual + 1000;
}

/* Wherever the deadline strikes, the outcome told is the outcome. Under ASan this also finds an
 * answer that is written where its query's frame was (mr__tx_query_params without disown_rows()
 * fails here). */
static void a_deadline_at_every_moment(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE TABLE t (n int)");
    const mr_clock clock = {.now = counting_now, .manual = 1000000};
    int committed = 0;
    for (int looks = 0; looks < 60; looks++) {
        looks_left = 1 << 30;
        mr_session *session = open_session(s, looks % 2 == 0, &clock, &never);
        looks_left = looks;
        run(s->conn, "TRUNCATE t");
        mr_tx *tx = NULL;
        mr_error *error = mr__tx_begin(session, 1000500, &tx);
        if (error == NULL) {
            for (int i = 0; i < 3 && error == NULL; i++) {
                error = insert(tx, i);
                PGresult *rows = NULL;
                if (error == NULL)
                    error = mr_tx_query(tx, "SELECT n, repeat('x', 1000) FROM t", 0, NULL, &rows);
                PQclear(rows);
            }
            mr_error *outcome = error == NULL ? mr__tx_commit(tx, NULL) : mr__tx_rollback(tx, NULL);
            bool told = error == NULL && outcome == NULL;
            mr_error_free(outcome);
            assert_int_equal(number(s->conn, "SELECT count(*) FROM t"), told ? 3 : 0);
            committed += told;
        }
        mr_error_free(error);
        looks_left = 1 << 30;
        if (mr__session_usable(session)) {
            assert_ok(mr__tx_begin(session, 1000500, &tx));
            assert_ok(insert(tx, 9));
            assert_ok(mr__tx_commit(tx, NULL));
            assert_int_equal(number(s->conn, "SELECT count(*) FROM t WHERE n = 9"), 1);
        }
        mr__session_close(session);
    }
    assert_true(committed > 0 && committed < 60);
}

typedef struct killer {
    const scratch *scratch;
    int pid;
} killer;

static void *kill_backend(void *argument)
{
    const killer *k = argument;
    PGconn *conn = scratch_connect(k->scratch);
    char sql[200];
    (void)snprintf(
        sql, sizeof(sql),
        "SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND wait_event = 'PgSleep'", k->pid);
    while (number(conn, sql) == 0)
        (void)usleep(5000);
    (void)snprintf(sql, sizeof(sql), "SELECT pg_terminate_backend(%d)", k->pid);
    run(conn, sql);
    PQfinish(conn);
    return NULL;
}

static void a_killed_backend(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE TABLE t (n int)");
    for (int way = 0; way < 3; way++) {
        mr_session *session = plain_session(s);
        killer k = {.scratch = s, .pid = PQbackendPID(mr__session_conn(session))};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, kill_backend, &k), 0);
        mr_tx *tx = begin(session);
        mr_error *error = NULL;
        for (int i = 0; i < 5000 && error == NULL; i++) {
            error = insert(tx, i);
            if (error == NULL && i == 2500)
                error = mr_tx_exec(tx, "SELECT pg_sleep(600)", 0, NULL);
        }
        PGresult *rows = NULL;
        if (way == 1 && error == NULL)
            error = mr_tx_query(tx, "SELECT 1", 0, NULL, &rows);
        if (error != NULL)
            assert_int_equal(mr_error_code(error), MR_E_CONNECT);
        bool commit = way != 2 && error == NULL;
        mr_error_free(error);
        error = commit ? mr__tx_commit(tx, NULL) : mr__tx_rollback(tx, NULL);
        assert_true(mr_error_retryable(error));
        assert_error(error, MR_E_CONNECT, "");
        assert_false(mr__session_usable(session));
        assert_int_equal(pthread_join(thread, NULL), 0);
        mr__session_close(session);
        assert_int_equal(number(s->conn, "SELECT count(*) FROM t"), 0);
    }
}

static void control_words(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE TABLE t (n int)");
    static const char *const refused[] = {"BEGIN",
                                          "commit",
                                          " ;; \n COMMIT AND CHAIN",
                                          "-- x\nRollback",
                                          "/* a */ END",
                                          "/* a /* b */ c */ COMMIT",
                                          "/**//* - */-- y\n\tABORT",
                                          "START TRANSACTION",
                                          "ROLLBACK TO SAVEPOINT x",
                                          "PREPARE  TRANSACTION 'x'",
                                          "prepare\ntransaction 'x'",
                                          "COMMIT PREPARED 'x'"};
    static const char *const allowed[] = {"SELECT 'COMMIT'",
                                          "/* COMMIT */ SELECT 1",
                                          "SAVEPOINT x",
                                          "RELEASE x",
                                          "WITH begin AS (SELECT 1) SELECT * FROM begin",
                                          "-- COMMIT\nSELECT 1",
                                          "SELECT 1 /* unclosed"};
    mr_session *session = plain_session(s);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        for (int query = 0; query < 2; query++) {
            mr_tx *tx = begin(session);
            assert_ok(insert(tx, 1));
            PGresult *rows = NULL;
            mr_error *error = query == 1 ? mr_tx_query(tx, refused[i], 0, NULL, &rows)
                                         : mr_tx_exec(tx, refused[i], 0, NULL);
            if (error == NULL)
                fail_msg("not refused: %s", refused[i]);
            assert_error(error, MR_E_HANDLER, "belongs to the worker");
            /* A handler that swallows it still does not get its batch committed. */
            assert_error(mr__tx_commit(tx, NULL), MR_E_HANDLER, "belongs to the worker");
            assert_int_equal(number(s->conn, "SELECT count(*) FROM t"), 0);
        }
    }
    for (size_t i = 0; i + 1 < sizeof(allowed) / sizeof(allowed[0]); i++) {
        mr_tx *tx = begin(session);
        if (strcmp(allowed[i], "RELEASE x") == 0)
            assert_ok(mr_tx_exec(tx, "SAVEPOINT x", 0, NULL));
        assert_ok(mr_tx_exec(tx, allowed[i], 0, NULL));
        assert_ok(mr__tx_commit(tx, NULL));
    }
    /* Two statements in one text are the server's to refuse. */
    mr_tx *tx = begin(session);
    assert_ok(insert(tx, 1));
    assert_ok(mr_tx_exec(tx, "SELECT 1; COMMIT", 0, NULL));
    assert_error(mr__tx_commit(tx, NULL), MR_E_DB, "multiple commands");
    assert_works(session, s->conn);
    mr__session_close(session);
}

static void more_statements_than_the_cache_holds(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE TABLE t (n int)");
    mr_session *session = plain_session(s);
    for (int round = 0; round < 3; round++) {
        mr_tx *tx = begin(session);
        for (int i = 0; i < 400; i++) {
            char sql[64];
            (void)snprintf(sql, sizeof(sql), "INSERT INTO t VALUES (%d)", i);
            assert_ok(mr_tx_exec(tx, sql, 0, NULL));
        }
        assert_ok(mr__tx_commit(tx, NULL));
    }
    assert_int_equal(number(s->conn, "SELECT count(*) FROM t"), 1200);
    /* A statement that does not parse is prepared anew each time, not taken for prepared. */
    for (int round = 0; round < 3; round++) {
        mr_tx *tx = begin(session);
        assert_ok(mr_tx_exec(tx, "SELECT * FROM missing", 0, NULL));
        assert_error(mr__tx_commit(tx, NULL), MR_E_DB, "does not exist");
    }
    mr__session_close(session);
}

static void statements_that_could_not_be_prepared(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE TABLE t (n int)");
    mr_session *session = plain_session(s);
    for (int round = 0; round < 3; round++) {
        mr_tx *tx = begin(session);
        assert_ok(mr_tx_exec(tx, "SELECT 1 / 0", 0, NULL));
        assert_ok(insert(tx, 5)); /* its Parse is skipped because of the failure before it */
        mr_error_free(mr__tx_commit(tx, NULL));
        assert_works(session, s->conn);
    }
    /* A table that was late. */
    mr_tx *tx = begin(session);
    assert_ok(mr_tx_exec(tx, "SELECT * FROM missing", 0, NULL));
    assert_error(mr__tx_commit(tx, NULL), MR_E_DB, "does not exist");
    run(s->conn, "CREATE TABLE missing (x int)");
    tx = begin(session);
    assert_ok(mr_tx_exec(tx, "SELECT * FROM missing", 0, NULL));
    assert_ok(mr__tx_commit(tx, NULL));
    /* Its shape changes under a prepared statement: this one fails, the next connection is fine. */
    run(s->conn, "ALTER TABLE missing ALTER x TYPE text");
    tx = begin(session);
    assert_ok(mr_tx_exec(tx, "SELECT * FROM missing", 0, NULL));
    mr_error *error = mr__tx_commit(tx, NULL);
    assert_true(error == NULL || !mr__session_usable(session));
    mr_error_free(error);
    mr__session_close(session);
}

static void statements_that_vanish(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE TABLE t (n int)");
    mr_session *session = plain_session(s);
    assert_works(session, s->conn);
    mr_tx *tx = begin(session);
    assert_ok(mr_tx_exec(tx, "DEALLOCATE ALL", 0, NULL));
    mr_error_free(mr__tx_commit(tx, NULL));
    if (mr__session_usable(session)) {
        tx = NULL;
        mr_error *error = mr__tx_begin(session, in_seconds(60), &tx);
        if (error == NULL) {
            mr_error_free(insert(tx, 1));
            error = mr__tx_commit(tx, NULL);
        }
        assert_non_null(error);
        mr_error_free(error);
        assert_false(mr__session_usable(session));
    }
    mr__session_close(session);
}

static void a_commit_that_fails(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE TABLE t (n int)");
    run(s->conn, "CREATE TABLE parent (id int PRIMARY KEY)");
    run(s->conn, "CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)");
    mr_session *session = plain_session(s);
    mr_tx *tx = begin(session);
    mr__tx_tag(tx, 0);
    assert_ok(insert(tx, 1));
    assert_ok(mr_tx_exec(tx, "INSERT INTO child VALUES (1)", 0, NULL));
    int failed = 99;
    mr_error *error = mr__tx_commit(tx, &failed);
    assert_string_equal(mr_error_sqlstate(error), "23503");
    assert_error(error, MR_E_DB, "foreign key");
    assert_int_equal(failed, -1); /* nobody's statement failed, the commit did */
    assert_int_equal(number(s->conn, "SELECT count(*) FROM t"), 0);
    assert_int_equal(number(s->conn, "SELECT count(*) FROM child"), 0);
    assert_works(session, s->conn);
    mr__session_close(session);
}

static void a_deadline_during_the_commit(void **state)
{
    scratch *s = *state;
    run(s->conn, "CREATE TABLE t (n int)");
    run(s->conn, "CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS"
                 " $$BEGIN PERFORM pg_sleep(600); RETURN NULL; END$$");
    run(s->conn, "CREATE CONSTRAINT TRIGGER nap AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED"
                 " FOR EACH ROW WHEN (NEW.n = 13) EXECUTE FUNCTION nap()");
    mr_session *session = plain_session(s);
    mr_tx *tx = NULL;
    assert_ok(mr__tx_begin(session, mr__clock_now(&mr__clock_system) + 200000, &tx));
    assert_ok(insert(tx, 13));
    assert_error(mr__tx_commit(tx, NULL), MR_E_TIMEOUT, "batch_timeout");
    assert_int_equal(number(s->conn, "SELECT count(*) FROM t"), 0);
    assert_works(session, s->conn);
    mr__session_close(session);
}

static bool usable_after(const scratch *s, const char *sql)
{
    mr_session *session = plain_session(s);
    mr_tx *tx = begin(session);
    assert_ok(mr_tx_exec(tx, sql, 0, NULL));
    assert_true(mr__session_usable(session)); /* for the rest of this transaction */
    assert_ok(mr__tx_commit(tx, NULL));
    bool usable = mr__session_usable(session);
    assert_true(mr__session_sound(session));
    mr__session_close(session);
    return usable;
}

/* What a handler changes of its session, nobody else is to meet. */
static void traces(void **state)
{
    scratch *s = *state;
    static const char *const left[] = {"SET search_path = nowhere",
                                       "/* x */ set SESSION work_mem = '1MB'",
                                       "SET ROLE NONE",
                                       "RESET ALL",
                                       "LISTEN something",
                                       "PREPARE p AS SELECT 1",
                                       "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
                                       "DISCARD PLANS"};
    static const char *const none[] = {
        "SET LOCAL search_path = nowhere", "SET /* x */ local work_mem = '1MB'",
        "SET CONSTRAINTS ALL DEFERRED",    "SET TRANSACTION READ ONLY",
        "DECLARE c CURSOR FOR SELECT 1",   "SELECT 'SET'"};
    for (size_t i = 0; i < sizeof(left) / sizeof(left[0]); i++)
        if (usable_after(s, left[i]))
            fail_msg("the next one would feel: %s", left[i]);
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        if (!usable_after(s, none[i]))
            fail_msg("leaves nothing: %s", none[i]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        TEST(blame),
        TEST(first_of_two_failures),
        TEST(many_statements),
        TEST(large_results_and_parameters),
        TEST(queries_between),
        TEST(a_deadline_cancels),
        TEST(a_forced_stop_cancels),
        TEST(a_deadline_at_every_moment),
        TEST(a_killed_backend),
        TEST(control_words),
        TEST(traces),
        TEST(more_statements_than_the_cache_holds),
        TEST(statements_that_could_not_be_prepared),
        TEST(statements_that_vanish),
        TEST(a_commit_that_fails),
        TEST(a_deadline_during_the_commit),
    };
    return cmocka_run_group_tests_name("tx", tests, NULL, NULL);
}
