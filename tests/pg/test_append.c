/* Appends against a real server: versions, conflicts that cost no position, the caller's
 * transaction, large drafts, and many appenders at once. */
#include "append_fixture.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void expected_versions(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    fixture f;
    begin(state, &f);
    assert_ok(append(conn, &f, "o-1", MR_EXPECT_NONE, 2));
    assert_int_equal(mr_draft_position(f.draft, 0), 1);
    assert_int_equal(mr_draft_position(f.draft, 1), 2);
    assert_int_equal(mr_draft_version(f.draft, 1), 2);
    assert_int_equal(mr_draft_position(f.draft, 2), 0);
    assert_ok(append(conn, &f, "o-1", 2, 1));
    assert_ok(append(conn, &f, "o-1", MR_EXPECT_ANY, 2));
    assert_int_equal(mr_draft_version(f.draft, 0), 4);
    assert_ok(append(conn, &f, "o-2", MR_EXPECT_ANY, 1));
    assert_int_equal(mr_draft_version(f.draft, 0), 1);
    int64_t before = drawn(conn);
    assert_error(append(conn, &f, "o-1", 3, 1), MR_E_CONFLICT,
                 "stream Order/o-1 is at version 5, expected 3");
    assert_int_equal(mr_draft_position(f.draft, 0), 0);
    assert_error(append(conn, &f, "o-1", MR_EXPECT_NONE, 1), MR_E_CONFLICT,
                 "stream Order/o-1 is at version 5, expected none");
    assert_error(append(conn, &f, "o-9", 1, 1), MR_E_CONFLICT,
                 "stream Order/o-9 does not exist, expected version 1");
    assert_int_equal(drawn(conn), before);
    assert_int_equal(number(conn, "SELECT count(*) FROM events"), before);
    end(&f);
}

static void all_fields(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    fixture f;
    begin(state, &f);
    assert_ok(mr_draft_stream(f.draft, "Order", "\xC3\xA9", MR_EXPECT_ANY));
    assert_ok(mr_draft_event(f.draft, "Placed", "\0\xFF\x01", 3));
    assert_ok(mr_draft_field(f.draft, "event_id", "0123ABCD-89ab-cdef-0123-456789abcdef"));
    assert_ok(mr_draft_field(f.draft, "event_version", "7"));
    assert_ok(mr_draft_field(f.draft, "trace_id", "t"));
    assert_ok(mr_draft_field(f.draft, "correlation_id", ""));
    assert_ok(mr_draft_field(f.draft, "metadata", "{\"a\":[1]}"));
    assert_ok(mr_draft_event(f.draft, "Empty", NULL, 0));
    assert_ok(mr_append(conn, f.log, f.draft));
    assert_string_equal(
        value(conn, "SELECT concat_ws('|', aggregate_id, event_id, event_version, encode(payload,"
                    " 'hex'), trace_id, '<' || correlation_id || '>', causation_id IS NULL,"
                    " metadata, created_at <= now()) FROM events WHERE global_position = 1"),
        "\xC3\xA9|0123abcd-89ab-cdef-0123-456789abcdef|7|00ff01|t|<>|t|{\"a\": [1]}|t");
    assert_int_equal(number(conn, "SELECT count(*) FROM events WHERE payload = '' AND"
                                  " metadata IS NULL AND trace_id IS NULL AND event_version = 1"),
                     1);
    end(&f);
}

static void bad_calls(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    fixture f;
    begin(state, &f);
    mr_draft *d = f.draft;
    assert_error(mr_append(conn, f.log, d), MR_E_USAGE, "no events");
    assert_error(mr_draft_event(d, "E", "", 0), MR_E_USAGE, "mr_draft_stream");
    assert_error(mr_draft_field(d, "trace_id", "x"), MR_E_USAGE, "no event");
    assert_error(mr_draft_stream(d, "", "x", 0), MR_E_USAGE, "aggregate_type");
    assert_error(mr_draft_stream(d, "T", "\xFF", 0), MR_E_USAGE, "aggregate_id");
    assert_error(mr_draft_stream(d, "T", "x", -2), MR_E_USAGE, "expected version");
    assert_ok(mr_draft_stream(d, "T", "x", 0));
    assert_error(mr_draft_event(d, "", "", 0), MR_E_USAGE, "event_type");
    assert_ok(mr_draft_event(d, "E", "", 0));
    assert_error(mr_draft_field(d, "event_id", "x"), MR_E_PARSE, "UUID");
    assert_error(mr_draft_field(d, "event_version", "x"), MR_E_PARSE, "event_version");
    assert_error(mr_draft_field(d, "metadata", "{"), MR_E_PARSE, "JSON");
    assert_error(mr_draft_field(d, "colour", "x"), MR_E_USAGE, "no field 'colour'");
    run(conn, "BEGIN");
    PQclear(PQexec(conn, "SELECT 1/0"));
    assert_error(mr_append(conn, f.log, d), MR_E_USAGE, "has failed");
    run(conn, "ROLLBACK");
    assert_int_equal(PQenterPipelineMode(conn), 1);
    assert_error(mr_append(conn, f.log, d), MR_E_USAGE, "pipeline mode");
    assert_int_equal(PQexitPipelineMode(conn), 1);
    assert_ok(mr_append(conn, f.log, d));
    run(conn, "DROP FUNCTION millrace.append_events");
    assert_error(append(conn, &f, "y", 0, 1), MR_E_SCHEMA, "schema apply");
    end(&f);
}

static void callers_transaction(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    fixture f;
    begin(state, &f);
    run(conn, "CREATE TABLE mine (n int)");
    assert_ok(append(conn, &f, "o-1", MR_EXPECT_NONE, 1));
    run(conn, "BEGIN; INSERT INTO mine VALUES (1)");
    assert_ok(append(conn, &f, "o-2", MR_EXPECT_NONE, 1));
    assert_error(append(conn, &f, "o-1", MR_EXPECT_NONE, 1), MR_E_CONFLICT, "o-1");
    assert_int_equal(PQtransactionStatus(conn), PQTRANS_INTRANS);
    assert_ok(append(conn, &f, "o-1", 1, 1));
    run(conn, "INSERT INTO mine VALUES (2); COMMIT");
    assert_int_equal(number(conn, "SELECT count(*) FROM mine"), 2);
    assert_int_equal(number(conn, "SELECT count(*) FROM events"), 3);
    run(conn, "BEGIN");
    assert_ok(append(conn, &f, "o-1", 2, 1));
    run(conn, "ROLLBACK");
    assert_int_equal(number(conn, "SELECT count(*) FROM events"), 3);
    assert_int_equal(number(conn, "SELECT aggregate_version FROM aggregate_heads"
                                  " WHERE aggregate_id = 'o-1'"),
                     2);
    end(&f);
}

/* A conflict in one stream takes all of the draft with it, and draws nothing. */
static void many_streams(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    fixture f;
    begin(state, &f);
    for (int i = 0; i < 500; i++) {
        char id[16];
        (void)snprintf(id, sizeof(id), "s-%d", i % 100);
        assert_ok(mr_draft_stream(f.draft, "Order", id, i < 100 ? MR_EXPECT_NONE : 77));
        assert_ok(mr_draft_event(f.draft, "E", "x", 1));
    }
    assert_ok(mr_draft_stream(f.draft, "Order", "without-events", MR_EXPECT_NONE));
    assert_ok(mr_append(conn, f.log, f.draft));
    assert_int_equal(mr_draft_version(f.draft, 499), 5);
    for (size_t i = 0; i < 500; i++)
        assert_int_equal(mr_draft_position(f.draft, i), i + 1);
    assert_int_equal(number(conn, "SELECT count(*) FROM aggregate_heads"
                                  " WHERE aggregate_version = 5"),
                     100);
    assert_int_equal(number(conn, "SELECT count(*) FROM aggregate_heads"), 100);
    mr_draft_clear(f.draft);
    assert_ok(mr_draft_stream(f.draft, "Order", "a-new-one", MR_EXPECT_NONE));
    assert_ok(mr_draft_event(f.draft, "E", "x", 1));
    assert_ok(mr_draft_stream(f.draft, "Order", "s-1", MR_EXPECT_NONE));
    assert_ok(mr_draft_event(f.draft, "E", "x", 1));
    assert_error(mr_append(conn, f.log, f.draft), MR_E_CONFLICT, "s-1");
    assert_int_equal(drawn(conn), 500);
    assert_int_equal(number(conn, "SELECT count(*) FROM aggregate_heads"), 100);
    end(&f);
}

enum { APPENDERS = 8, ROUNDS = 40 };

typedef struct appender {
    PGconn *conn;
    fixture *f;
    int conflicts, failures;
    bool exact, forward;
} appender;

/* Each appends to two streams, named in opposite orders by odd and even ones: sorted reservation
 * must keep them from deadlocking. */
static mr_error *append_two(appender *a, mr_draft *draft, bool forward)
{
    static const char *const ids[] = {"left", "right"};
    mr_draft_clear(draft);
    for (int k = 0; k < 2; k++) {
        mr_error *error = mr_draft_stream(draft, "Shared", ids[forward ? k : 1 - k], MR_EXPECT_ANY);
        if (error == NULL)
            error = mr_draft_event(draft, "E", "x", 1);
        if (error != NULL)
            return error;
    }
    return mr_append(a->conn, a->f->log, draft);
}

static mr_error *append_exact(appender *a, mr_draft *draft)
{
    PGresult *rows = PQexec(a->conn, "SELECT aggregate_version FROM aggregate_heads"
                                     " WHERE aggregate_type = 'Exact'");
    int64_t version = PQntuples(rows) == 0 ? 0 : strtoll(PQgetvalue(rows, 0, 0), NULL, 10);
    PQclear(rows);
    mr_draft_clear(draft);
    mr_error *error = mr_draft_stream(draft, "Exact", "one", version);
    if (error == NULL)
        error = mr_draft_event(draft, "E", "x", 1);
    return error != NULL ? error : mr_append(a->conn, a->f->log, draft);
}

static void *append_thread(void *argument)
{
    appender *a = argument;
    mr_draft *draft = mr_draft_new();
    for (int i = 0; draft != NULL && i < ROUNDS; i++) {
        mr_error *error = a->exact ? append_exact(a, draft) : append_two(a, draft, a->forward);
        if (mr_error_code(error) == MR_E_CONFLICT) {
            a->conflicts++;
            i--;
        } else if (error != NULL) {
            a->failures++;
        }
        mr_error_free(error);
    }
    mr_draft_free(draft);
    return NULL;
}

static int run_appenders(void **state, fixture *f, bool exact)
{
    appender appenders[APPENDERS] = {0};
    pthread_t threads[APPENDERS];
    int conflicts = 0;
    for (int i = 0; i < APPENDERS; i++) {
        appenders[i] = (appender){
            .conn = scratch_connect(*state), .f = f, .exact = exact, .forward = i % 2 == 0};
        assert_int_equal(pthread_create(&threads[i], NULL, append_thread, &appenders[i]), 0);
    }
    for (int i = 0; i < APPENDERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(appenders[i].failures, 0);
        conflicts += appenders[i].conflicts;
        PQfinish(appenders[i].conn);
    }
    return conflicts;
}

static void concurrent_appenders(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    fixture f;
    begin(state, &f);
    run_appenders(state, &f, false);
    enum { TOTAL = APPENDERS * ROUNDS };
    assert_int_equal(number(conn, "SELECT count(*) FROM events"), 2 * TOTAL);
    assert_int_equal(number(conn, "SELECT count(*) FROM aggregate_heads WHERE aggregate_version = "
                                  "(SELECT count(*) / 2 FROM events)"),
                     2);
    int conflicts = run_appenders(state, &f, true);
    print_message("%d conflicts\n", conflicts);
    assert_int_equal(number(conn, "SELECT count(*) FROM events WHERE aggregate_type = 'Exact'"),
                     TOTAL);
    /* However many conflicts: not one position was drawn in vain. */
    assert_int_equal(drawn(conn), 3 * TOTAL);
    end(&f);
}

static void large_payloads(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    fixture f;
    begin(state, &f);
    enum { BIG = 10 << 20 };
    char *payload = malloc(BIG);
    assert_non_null(payload);
    for (int i = 0; i < BIG; i++)
        payload[i] = (char)(i * 7);
    run(conn, "BEGIN");
    assert_ok(mr_draft_stream(f.draft, "Order", "big", MR_EXPECT_ANY));
    for (int i = 0; i < 5; i++)
        assert_ok(mr_draft_event(f.draft, "Big", payload, BIG));
    assert_ok(mr_append(conn, f.log, f.draft));
    run(conn, "COMMIT");
    assert_int_equal(number(conn, "SELECT sum(length(payload)) FROM events"), 5LL * BIG);
    free(payload);
    end(&f);
}

/* The messages that one append sends: a single Sync is a single round trip. */
static int count_syncs(PGconn *conn, fixture *f, const char *id)
{
    FILE *trace = tmpfile();
    assert_non_null(trace);
    PQtrace(conn, trace);
    assert_ok(append(conn, f, id, MR_EXPECT_NONE, 100));
    PQuntrace(conn);
    rewind(trace);
    char line[4096];
    int syncs = 0;
    while (fgets(line, sizeof(line), trace) != NULL)
        if (strstr(line, "\tF\t") != NULL && strstr(line, "\tSync") != NULL)
            syncs++;
    (void)fclose(trace);
    return syncs;
}

static void one_round_trip(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    fixture f;
    begin(state, &f);
    assert_int_equal(count_syncs(conn, &f, "a"), 1);
    run(conn, "BEGIN");
    assert_int_equal(count_syncs(conn, &f, "b"), 1);
    run(conn, "COMMIT");
    end(&f);
}

static void nonblocking_connection(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    fixture f;
    begin(state, &f);
    assert_int_equal(PQsetnonblocking(conn, 1), 0);
    assert_ok(append(conn, &f, "a", MR_EXPECT_NONE, 1000));
    run(conn, "BEGIN");
    assert_ok(append(conn, &f, "b", MR_EXPECT_NONE, 10000));
    run(conn, "COMMIT");
    assert_int_equal(number(conn, "SELECT count(*) FROM events"), 11000);
    end(&f);
}

static void lost_connection(void **state)
{
    fixture f;
    begin(state, &f);
    PGconn *conn = scratch_connect(*state);
    run(conn, "BEGIN");
    char sql[64];
    (void)snprintf(sql, sizeof(sql), "SELECT pg_terminate_backend(%d)", PQbackendPID(conn));
    run(((scratch *)*state)->conn, sql);
    mr_error *error = append(conn, &f, "a", MR_EXPECT_NONE, 10);
    assert_int_equal(mr_error_code(error), MR_E_CONNECT);
    assert_true(mr_error_retryable(error));
    mr_error_free(error);
    PQfinish(conn);
    end(&f);
}

/* ---- The function for any language ---------------------------------------------------------- */

static void refused(PGconn *conn, const char *arguments, const char *state, const char *text)
{
    char sql[512];
    (void)snprintf(sql, sizeof(sql), "SELECT * FROM millrace.append(%s)", arguments);
    PGresult *result = PQexec(conn, sql);
    const char *got = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    if (got == NULL || strcmp(got, state) != 0 ||
        strstr(PQresultErrorMessage(result), text) == NULL)
        fail_msg("%s: %s %s", sql, got == NULL ? "ok" : got, PQresultErrorMessage(result));
    PQclear(result);
}

static void sql_append(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    fixture f;
    begin(state, &f);
    run(conn, "LISTEN chan");
    assert_string_equal(
        value(conn, "SELECT string_agg(global_position || ':' || version, ' ') FROM"
                    " millrace.append('Order', 'o-1', 0, '[{\"type\":\"A\",\"data\":{\"n\":1}},"
                    "{\"event_type\":\"B\",\"payload\":\"raw\",\"metadata\":{\"m\":1},"
                    "\"trace_id\":\"t\"},{\"type\":\"C\",\"payload_base64\":\"/wA=\"}]', 'chan')"),
        "1:1 2:2 3:3");
    assert_string_equal(value(conn, "SELECT string_agg(event_type || encode(payload, 'escape'),"
                                    " ' ' ORDER BY global_position) FROM events"),
                        "A{\"n\": 1} Braw C\\377\\000");
    PGnotify *notice = PQnotifies(conn);
    assert_non_null(notice);
    assert_string_equal(notice->extra, "3");
    PQfreemem(notice);
    assert_ok(mr_log_notify(conn, "chan", 42));
    notice = PQnotifies(conn);
    assert_non_null(notice);
    assert_string_equal(notice->extra, "42");
    PQfreemem(notice);
    assert_error(mr_log_notify(conn, "", 42), MR_E_USAGE, "channel");
    refused(conn, "'Order', 'o-1', 2, '{\"type\":\"A\"}'", "MR001", "at version 3, expected 2");
    refused(conn, "'', 'o-1', 2, '{\"type\":\"A\"}'", "22023", "must not be empty");
    refused(conn, "'T', 'o-1', -2, '{\"type\":\"A\"}'", "22023", "expected_version");
    refused(conn, "'T', 'o-1', 0, '[]'", "22023", "at least one");
    refused(conn, "'T', 'o-1', 0, NULL", "22023", "at least one");
    refused(conn, "'T', 'o-1', 0, '[{\"type\":\"A\"}, 3]'", "22023", "event 2 of 2: not a JSON");
    refused(conn, "'T', 'o-1', 0, '{\"data\":3}'", "22023", "event 1 of 1: no event_type");
    refused(conn, "'T', 'o-1', 0, '{\"type\":\"A\",\"dta\":3}'", "22023", "unknown key \"dta\"");
    refused(conn, "'T', 'o-1', 0, '{\"type\":\"A\",\"event_id\":3}'", "22P02", "event 1 of 1");
    refused(conn, "'T', 'o-1', 0, '{\"type\":\"A\",\"payload_base64\":\"*\"}'", "22023", "event 1");
    assert_int_equal(drawn(conn), 3);
    end(&f);
}

/* Settling relies on it: the table's lock is held from before the position is drawn. */
static void lock_is_visible(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    fixture f;
    begin(state, &f);
    run(conn, "BEGIN");
    assert_ok(append(conn, &f, "a", MR_EXPECT_NONE, 1));
    PGconn *other = scratch_connect(*state);
    assert_int_equal(number(other, "SELECT count(*) FROM pg_locks WHERE mode = 'RowExclusiveLock'"
                                   " AND relation = 'events'::regclass AND granted"),
                     1);
    PQfinish(other);
    run(conn, "ROLLBACK");
    end(&f);
}

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        TEST(expected_versions),   TEST(all_fields),     TEST(bad_calls),
        TEST(callers_transaction), TEST(many_streams),   TEST(concurrent_appenders),
        TEST(large_payloads),      TEST(one_round_trip), TEST(nonblocking_connection),
        TEST(lost_connection),     TEST(sql_append),     TEST(lock_is_visible),
    };
    return cmocka_run_group_tests_name("append", tests, NULL, NULL);
}
