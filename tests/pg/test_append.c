/* Appends against a real server: versions, conflicts that cost no position, the caller's
 * transaction, logs of other shapes, large drafts, and many appenders at once. */
#include "scratch.h"

#include "cluster/schema.h"
#include "log/append.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct fixture {
    mr_names names;
    mr_log_spec spec;
    mr_log *log;
    mr_draft *draft;
} fixture;

static void open_log(PGconn *conn, fixture *f)
{
    const mr_schema_input input = {.names = &f->names, .log = &f->spec};
    assert_ok(mr__schema_apply(conn, &input, NULL));
    assert_ok(mr__log_open(conn, &f->spec, f->names.schema, &f->log));
    f->draft = mr_draft_new();
    assert_non_null(f->draft);
}

static void fixture_init(fixture *f)
{
    *f = (fixture){0};
    assert_ok(mr__names_init(&f->names, "millrace"));
    mr__log_spec_init(&f->spec);
}

static void begin(void **state, fixture *f)
{
    fixture_init(f);
    open_log(((scratch *)*state)->conn, f);
}

static void end(fixture *f)
{
    mr_draft_free(f->draft);
    mr_log_free(f->log);
}

/* Appends `count` events to a stream. */
static mr_error *append(PGconn *conn, fixture *f, const char *id, int64_t expected, int count)
{
    mr_draft_clear(f->draft);
    assert_ok(mr_draft_stream(f->draft, "Order", id, expected));
    for (int i = 0; i < count; i++)
        assert_ok(mr_draft_event(f->draft, "Placed", "{}", 2));
    return mr_append(conn, f->log, f->draft);
}

static int64_t drawn(PGconn *conn)
{
    return number(conn, "SELECT CASE WHEN is_called THEN last_value ELSE 0 END"
                        " FROM events_global_position_seq");
}

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

/* ---- Logs of other shapes ------------------------------------------------------------------- */

static void jsonb_log(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    fixture f;
    fixture_init(&f);
    run(conn, "CREATE TABLE aggregate_heads (aggregate_type text, aggregate_id text,"
              " aggregate_version bigint, PRIMARY KEY (aggregate_type, aggregate_id));"
              "CREATE TABLE events (global_position bigserial PRIMARY KEY, aggregate_type text,"
              " aggregate_id text, event_type text, payload jsonb NOT NULL, metadata text,"
              " created_at timestamptz NOT NULL)");
    open_log(conn, &f);
    assert_int_equal(f.log->shape.payload_kind, MR_PAYLOAD_JSONB);
    assert_true(f.log->shape.metadata_is_text);
    assert_ok(append(conn, &f, "a", MR_EXPECT_NONE, 2));
    assert_string_equal(value(conn, "SELECT payload FROM events"), "{}");
    mr_draft_clear(f.draft);
    assert_ok(mr_draft_stream(f.draft, "Order", "a", MR_EXPECT_ANY));
    assert_ok(mr_draft_event(f.draft, "E", "1", 1));
    assert_ok(mr_draft_event(f.draft, "E", "{nonsense", 9));
    assert_error(mr_append(conn, f.log, f.draft), MR_E_DB, "event 2: its payload");
    mr_draft_clear(f.draft);
    assert_ok(mr_draft_stream(f.draft, "Order", "a", MR_EXPECT_ANY));
    assert_ok(mr_draft_event(f.draft, "E", "\xFF", 1));
    assert_error(mr_append(conn, f.log, f.draft), MR_E_USAGE, "event 1: its payload is not UTF-8");
    assert_int_equal(drawn(conn), 2);
    end(&f);
}

static void partitioned_log(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    fixture f;
    fixture_init(&f);
    run(conn, "CREATE SEQUENCE events_global_position_seq;"
              "CREATE TABLE events (global_position bigint NOT NULL DEFAULT"
              " nextval('events_global_position_seq') PRIMARY KEY, stream_type text NOT NULL,"
              " stream_id text NOT NULL, stream_version bigint NOT NULL, event_id uuid NOT NULL,"
              " event_type text NOT NULL, event_version int NOT NULL DEFAULT 1,"
              " payload bytea NOT NULL, trace_id text, correlation_id text, causation_id text,"
              " metadata jsonb, created_at timestamptz NOT NULL DEFAULT now())"
              " PARTITION BY RANGE (global_position);"
              "CREATE TABLE events_p1 PARTITION OF events FOR VALUES FROM (1) TO (11);"
              "CREATE TABLE events_p2 PARTITION OF events FOR VALUES FROM (11) TO (1000);"
              "CREATE TABLE stream_heads (stream_type text, stream_id text, stream_version bigint,"
              " updated_at timestamptz DEFAULT now(), PRIMARY KEY (stream_type, stream_id))");
    open_log(conn, &f);
    assert_true(f.log->shape.partitioned);
    assert_int_equal(f.log->shape.naming, MR_NAMING_STREAM);
    assert_string_equal(f.log->shape.sequence, "public.events_global_position_seq");
    assert_ok(mr__log_shape_check(conn, &f.log->shape, true));
    assert_ok(append(conn, &f, "a", MR_EXPECT_NONE, 25));
    assert_int_equal(mr_draft_position(f.draft, 24), 25);
    assert_int_equal(number(conn, "SELECT count(*) FROM events_p1"), 10);
    run(conn, "ALTER SEQUENCE events_global_position_seq CACHE 20");
    mr_log_shape shape;
    assert_ok(mr__log_shape_read(conn, &f.spec, &shape));
    assert_error(mr__log_shape_check(conn, &shape, true), MR_E_LOG, "CACHE 20");
    assert_ok(mr__log_shape_check(conn, &shape, false));
    end(&f);
}

static void mapped_log(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    fixture f;
    fixture_init(&f);
    run(conn, "CREATE SCHEMA app; CREATE TYPE app.kind AS ENUM ('Order', 'Invoice');"
              "CREATE TABLE app.\"Journal\" (seq bigserial PRIMARY KEY, \"Kind\" app.kind,"
              " entity text, revision int, name varchar(40), body json);"
              "CREATE TABLE app.journal_heads (\"Kind\" app.kind, entity text, revision int,"
              " PRIMARY KEY (\"Kind\", entity))");
    assert_ok(mr__qname_parse("app.Journal", "log table", &f.spec.table));
    assert_error(mr__log_open(conn, &f.spec, "millrace", &f.log), MR_E_LOG,
                 "the log app.Journal has no column 'global_position'");
    static const struct {
        mr_column column;
        const char *name;
    } map[] = {{MR_COL_POSITION, "seq"},        {MR_COL_AGGREGATE_TYPE, "Kind"},
               {MR_COL_AGGREGATE_ID, "entity"}, {MR_COL_AGGREGATE_VERSION, "revision"},
               {MR_COL_EVENT_TYPE, "name"},     {MR_COL_PAYLOAD, "boddy"}};
    for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++)
        (void)snprintf(f.spec.column[map[i].column], MR_IDENT_MAX + 1, "%s", map[i].name);
    assert_error(mr__log_open(conn, &f.spec, "millrace", &f.log), MR_E_LOG, "did you mean 'body'?");
    (void)snprintf(f.spec.column[MR_COL_PAYLOAD], MR_IDENT_MAX + 1, "body");
    assert_ok(mr__log_open(conn, &f.spec, "millrace", &f.log));
    f.draft = mr_draft_new();
    assert_error(append(conn, &f, "a", MR_EXPECT_NONE, 1), MR_E_LOG, "no heads table");
    end(&f);
    assert_ok(mr__qname_parse("journal_heads", "heads", &f.spec.heads));
    open_log(conn, &f);
    assert_ok(append(conn, &f, "a", MR_EXPECT_NONE, 3));
    assert_error(append(conn, &f, "a", 2, 3), MR_E_CONFLICT, "is at version 3, expected 2");
    assert_string_equal(value(conn, "SELECT max(revision) || body::text || name"
                                    " FROM app.\"Journal\" WHERE \"Kind\" = 'Order'"
                                    " GROUP BY body::text, name"),
                        "3{}Placed");
    end(&f);
}

static void another_log_of_the_same_schema(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    fixture f, g;
    begin(state, &f);
    fixture_init(&g);
    assert_ok(mr__qname_parse("other.events", "log table", &g.spec.table));
    open_log(conn, &g);
    assert_ok(append(conn, &g, "a", MR_EXPECT_NONE, 1));
    assert_error(append(conn, &f, "a", MR_EXPECT_NONE, 1), MR_E_LOG,
                 "\"other\".\"events\", not to");
    end(&f);
    end(&g);
}

static void unfit_logs(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    mr_log_spec spec;
    mr_log_shape shape;
    mr__log_spec_init(&spec);
    assert_error(mr__log_shape_read(conn, &spec, &shape), MR_E_LOG, "there is no table events");
    run(conn, "CREATE VIEW events AS SELECT 1 AS global_position");
    assert_error(mr__log_shape_read(conn, &spec, &shape), MR_E_LOG, "not a table");
    run(conn, "DROP VIEW events; CREATE TABLE events (global_position bigint, aggregate_typ text,"
              " aggregate_id text, event_type text, payload int)");
    assert_error(mr__log_shape_read(conn, &spec, &shape), MR_E_LOG,
                 "`log: columns: {aggregate_type: aggregate_typ}`");
    run(conn, "ALTER TABLE events RENAME aggregate_typ TO aggregate_type");
    assert_error(mr__log_shape_read(conn, &spec, &shape), MR_E_LOG, "must be bytea");
    run(conn, "ALTER TABLE events ALTER payload TYPE text");
    assert_ok(mr__log_shape_read(conn, &spec, &shape));
    assert_error(mr__log_shape_check(conn, &shape, false), MR_E_LOG, "CREATE UNIQUE INDEX ON");
    run(conn, "CREATE UNIQUE INDEX ON events (global_position)");
    assert_error(mr__log_shape_check(conn, &shape, true), MR_E_LOG, "do not come from a sequence");
    assert_ok(mr__log_shape_check(conn, &shape, false));
    run(conn, "ALTER TABLE events ALTER global_position SET NOT NULL, ALTER global_position"
              " ADD GENERATED BY DEFAULT AS IDENTITY (CACHE 5)");
    assert_ok(mr__log_shape_read(conn, &spec, &shape));
    assert_error(mr__log_shape_check(conn, &shape, true), MR_E_LOG,
                 "ALTER SEQUENCE public.events_global_position_seq CACHE 1");
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

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        TEST(expected_versions),
        TEST(all_fields),
        TEST(bad_calls),
        TEST(callers_transaction),
        TEST(many_streams),
        TEST(concurrent_appenders),
        TEST(large_payloads),
        TEST(one_round_trip),
        TEST(nonblocking_connection),
        TEST(lost_connection),
        TEST(jsonb_log),
        TEST(partitioned_log),
        TEST(mapped_log),
        TEST(another_log_of_the_same_schema),
        TEST(unfit_logs),
        TEST(sql_append),
        TEST(lock_is_visible),
    };
    return cmocka_run_group_tests_name("append", tests, NULL, NULL);
}
