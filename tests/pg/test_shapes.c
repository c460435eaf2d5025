/* Logs that Millrace did not make: other payload types, partitions, mapped columns, and those it
 * must refuse. */
#include "append_fixture.h"

#include <stdio.h>
#include <string.h>

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

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        TEST(jsonb_log),  TEST(partitioned_log),
        TEST(mapped_log), TEST(another_log_of_the_same_schema),
        TEST(unfit_logs),
    };
    return cmocka_run_group_tests_name("shapes", tests, NULL, NULL);
}
