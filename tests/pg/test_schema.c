/* The schema in a real database: applied once, twice, by two at a time, with odd names, over an
 * existing log; and the functions that the control plane's fence stands on. */
#include "scratch.h"

#include "cluster/schema.h"
#include "cluster/schema_files.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct setting {
    mr_names names;
    mr_log_spec log;
    mr_schema_input input;
} setting;

static void setting_init(setting *s)
{
    assert_ok(mr__names_init(&s->names, "millrace"));
    mr__log_spec_init(&s->log);
    s->input = (mr_schema_input){.names = &s->names, .log = &s->log};
}

static int apply(PGconn *conn, const setting *s)
{
    int applied = -1;
    assert_ok(mr__schema_apply(conn, &s->input, &applied));
    return applied;
}

static size_t count_files(const mr_embed *files)
{
    size_t count = 0;
    while (files[count].name != NULL)
        count++;
    return count;
}

static void apply_twice(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    setting s;
    setting_init(&s);
    int current = -1, latest = -1;
    assert_ok(mr__schema_status(conn, &s.input, &current, &latest));
    assert_int_equal(current, 0);
    assert_error(mr__schema_require(conn, &s.input), MR_E_SCHEMA, "schema apply");
    assert_int_equal(apply(conn, &s), latest + 1); /* and the log */
    assert_ok(mr__schema_status(conn, &s.input, &current, &latest));
    assert_int_equal(current, latest);
    assert_ok(mr__schema_require(conn, &s.input));
    /* The second one writes nothing. */
    run(conn, "SET default_transaction_read_only = on");
    assert_int_equal(apply(conn, &s), 0);
    assert_int_equal(number(conn, "SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'p')"
                                  " AND NOT relispartition"
                                  " AND relnamespace = 'millrace'::regnamespace"),
                     MR_TABLE_COUNT);
    assert_int_equal(number(conn, "SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid ="
                                  " pronamespace WHERE nspname = 'millrace'"),
                     (int)(count_files(mr__sql_functions) + count_files(mr__sql_log_functions)));
    assert_string_equal(value(conn, "SELECT to_regclass('public.aggregate_heads')"),
                        "aggregate_heads");
}

static void apply_in_transaction_is_refused(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    setting s;
    setting_init(&s);
    run(conn, "BEGIN");
    assert_error(mr__schema_apply(conn, &s.input, NULL), MR_E_USAGE, "must be idle");
    run(conn, "ROLLBACK");
}

static void newer_database_is_refused(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    setting s;
    setting_init(&s);
    apply(conn, &s);
    run(conn, "INSERT INTO millrace.schema_migrations (version, name, applied_by)"
              " VALUES (999, '0999_future', 'millrace 9')");
    assert_error(mr__schema_apply(conn, &s.input, NULL), MR_E_SCHEMA, "version 999, newer");
    assert_error(mr__schema_require(conn, &s.input), MR_E_SCHEMA, "use a newer millrace");
}

static void failed_step_leaves_nothing(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    setting s;
    setting_init(&s);
    run(conn, "CREATE SCHEMA millrace; CREATE VIEW millrace.consumer_controls AS SELECT 1 AS a");
    run(conn, "CREATE VIEW millrace.log_published AS SELECT 1 AS a");
    mr_error *error = mr__schema_apply(conn, &s.input, NULL);
    assert_non_null(error);
    assert_non_null(strstr(mr_error_message(error), "0001_control_plane"));
    mr_error_free(error);
    assert_int_equal(PQtransactionStatus(conn), PQTRANS_IDLE);
    assert_string_equal(value(conn, "SELECT to_regclass('millrace.worker_nodes')"), "");
    run(conn, "DROP VIEW millrace.consumer_controls, millrace.log_published");
    apply(conn, &s);
}

enum { APPLIERS = 6 };

typedef struct applier {
    PGconn *conn;
    const setting *setting;
    int applied;
    mr_error *error;
} applier;

static void *apply_thread(void *argument)
{
    applier *a = argument;
    a->error = mr__schema_apply(a->conn, &a->setting->input, &a->applied);
    return NULL;
}

static void concurrent_apply(void **state)
{
    setting s;
    setting_init(&s);
    applier appliers[APPLIERS] = {0};
    pthread_t threads[APPLIERS];
    for (int i = 0; i < APPLIERS; i++) {
        appliers[i] = (applier){.conn = scratch_connect(*state), .setting = &s};
        assert_int_equal(pthread_create(&threads[i], NULL, apply_thread, &appliers[i]), 0);
    }
    int applied = 0, current = 0, latest = 0;
    for (int i = 0; i < APPLIERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_ok(appliers[i].error);
        applied += appliers[i].applied;
        PQfinish(appliers[i].conn);
    }
    assert_ok(mr__schema_status(((scratch *)*state)->conn, &s.input, &current, &latest));
    assert_int_equal(current, latest);
    assert_int_equal(applied, latest + 1);
}

static const char odd_names[] = "\"Odd \"\"table\"\" \\ it's : $1\"";

static void set_odd_names(setting *s)
{
    assert_ok(mr__names_init(&s->names, "Mill Race\"s"));
    assert_ok(mr__names_set(&s->names, MR_TABLE_CHECKPOINTS, odd_names));
    assert_ok(mr__names_set(&s->names, MR_TABLE_WORKER_NODES, "infra.worker_nodes"));
    assert_ok(
        mr__names_set(&s->names, MR_TABLE_GAP_SKIPS,
                      "infra.a_name_of_exactly_sixty_three_bytes_which_is_the_most_there_is1"));
    assert_ok(mr__names_set(&s->names, MR_TABLE_LEADER, "UPPER.Leader"));
    assert_ok(mr__qname_parse("Log Schema.Events Of All", "log table", &s->log.table));
    (void)snprintf(s->log.column[MR_COL_POSITION], MR_IDENT_MAX + 1, "The \"Position\"");
    (void)snprintf(s->log.column[MR_COL_AGGREGATE_TYPE], MR_IDENT_MAX + 1, "select");
}

static void check_odd_names(PGconn *conn)
{
    assert_int_equal(number(conn, "SELECT count(*) FROM pg_tables WHERE schemaname = 'infra'"), 2);
    assert_int_equal(number(conn, "SELECT count(*) FROM pg_tables WHERE schemaname = 'UPPER'"
                                  " AND tablename = 'Leader'"),
                     1);
    assert_int_equal(number(conn, "SELECT count(*) FROM pg_indexes WHERE schemaname = 'infra' AND"
                                  " indexname LIKE 'idx_a_name_of_exactly%' AND"
                                  " length(indexname) = 63"),
                     1);
    assert_int_equal(number(conn, "SELECT count(*) FROM pg_tables WHERE schemaname ="
                                  " 'Mill Race\"s' AND tablename ="
                                  " 'Odd \"table\" \\ it''s : $1'"),
                     1);
}

static void odd_table_names(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    setting s;
    setting_init(&s);
    set_odd_names(&s);
    apply(conn, &s);
    assert_int_equal(apply(conn, &s), 0);
    check_odd_names(conn);
    run(conn, "INSERT INTO \"Mill Race\"\"s\".\"Odd \"\"table\"\" \\ it's : $1\""
              " (consumer_name) VALUES ('c')");
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT ");
    mr__names_function(&s.names, "advance_checkpoint", &sql);
    mr__buf_puts(&sql, "('c', NULL, 0, 5)");
    run(conn, mr__buf_text(&sql));
    run(conn, "SELECT \"Mill Race\"\"s\".append('T', 'i', 0, '{\"type\":\"E\"}')");
    assert_int_equal(number(conn,
                            "SELECT \"The \"\"Position\"\"\" FROM \"Log Schema\".\"Events Of All\""
                            " WHERE \"select\" = 'T'"),
                     1);
}

static void two_fleets_in_one_schema(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    setting a, b;
    setting_init(&a);
    setting_init(&b);
    assert_ok(mr__names_set(&b.names, MR_TABLE_CHECKPOINTS, "b_checkpoints"));
    assert_ok(mr__names_set(&b.names, MR_TABLE_WORKER_NODES, "b_nodes"));
    apply(conn, &a);
    assert_true(apply(conn, &b) > 0);
    assert_int_equal(apply(conn, &a) + apply(conn, &b), 0);
    run(conn, "INSERT INTO millrace.consumer_checkpoints VALUES ('c', 7);"
              "INSERT INTO millrace.b_checkpoints VALUES ('c', 3)");
    MR_AUTO_BUF sql = {0};
    mr__buf_puts(&sql, "SELECT ");
    mr__names_function(&b.names, "advance_checkpoint", &sql);
    mr__buf_puts(&sql, "('c', NULL, 3, 4)");
    run(conn, mr__buf_text(&sql));
    run(conn, "SELECT millrace.advance_checkpoint('c', NULL, 7, 8)");
    assert_int_equal(number(conn, "SELECT last_position FROM millrace.b_checkpoints"), 4);
}

/* The reference's own tables, with rows, are adopted. */
static void existing_worker_tables(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    setting s;
    setting_init(&s);
    run(conn, "CREATE SCHEMA millrace; CREATE TABLE millrace.consumer_gap_skips (id bigserial"
              " PRIMARY KEY, consumer_name text NOT NULL, worker_id uuid NOT NULL,"
              " gap_position bigint NOT NULL, skip_to_position bigint NOT NULL,"
              " highest_visible_position bigint NOT NULL, first_seen_at timestamptz NOT NULL,"
              " created_at timestamptz NOT NULL DEFAULT now());"
              "INSERT INTO millrace.consumer_gap_skips (consumer_name, worker_id, gap_position,"
              " skip_to_position, highest_visible_position, first_seen_at) VALUES"
              " ('c', gen_random_uuid(), 5, 6, 9, now())");
    apply(conn, &s);
    assert_int_equal(number(conn, "SELECT gap_end FROM millrace.consumer_gap_skips"), 5);
}

static void existing_log_is_left_alone(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    setting s;
    setting_init(&s);
    run(conn, "CREATE TABLE events (global_position bigint GENERATED ALWAYS AS IDENTITY"
              " PRIMARY KEY, stream_type text NOT NULL, stream_id uuid NOT NULL,"
              " stream_version int NOT NULL, event_type text NOT NULL, payload jsonb NOT NULL);"
              "CREATE TABLE stream_heads (stream_type text, stream_id uuid, stream_version bigint,"
              " PRIMARY KEY (stream_type, stream_id))");
    int applied = apply(conn, &s), current = 0, latest = 0;
    assert_ok(mr__schema_status(conn, &s.input, &current, &latest));
    assert_int_equal(applied, latest);
    assert_int_equal(number(conn, "SELECT count(*) FROM pg_indexes WHERE tablename = 'events'"), 1);
    assert_string_equal(value(conn, "SELECT to_regclass('aggregate_heads')"), "");
    run(conn, "SELECT millrace.append('T', '00000000-0000-0000-0000-000000000001', 0,"
              " '[{\"type\":\"A\",\"data\":{\"n\":1}},{\"type\":\"B\"}]')");
    assert_string_equal(value(conn, "SELECT string_agg(event_type || stream_version ||"
                                    " payload::text, ',' ORDER BY global_position) FROM events"),
                        "A1{\"n\": 1},B2{}");
}

static void no_log(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    setting s;
    setting_init(&s);
    s.input.no_log = true;
    apply(conn, &s);
    assert_string_equal(value(conn, "SELECT to_regclass('events')"), "");
    assert_int_equal(number(conn, "SELECT count(*) FROM pg_proc WHERE proname = 'append'"), 0);
    /* A table that happens to bear the name but is no log. */
    run(conn, "CREATE TABLE events (id int)");
    assert_int_equal(apply(conn, &s), 0);
    s.input.no_log = false;
    assert_error(mr__schema_apply(conn, &s.input, NULL), MR_E_LOG, "global_position");
    run(conn, "DROP TABLE events");
    assert_int_equal(apply(conn, &s), 1);
    assert_int_equal(number(conn, "SELECT count(*) FROM pg_proc WHERE proname = 'append'"), 1);
}

static void stream_naming(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    setting s;
    setting_init(&s);
    s.log.naming = MR_NAMING_STREAM;
    apply(conn, &s);
    run(conn, "SELECT millrace.append('T', 'i', -1, '{\"type\":\"E\"}')");
    assert_int_equal(number(conn, "SELECT stream_version FROM events WHERE stream_id = 'i'"), 1);
    assert_int_equal(number(conn, "SELECT stream_version FROM stream_heads"), 1);
}

/* A user who may use everything but create nothing finds an applied schema in order. */
static void without_rights(void **state)
{
    const scratch *sc = *state;
    setting s;
    setting_init(&s);
    apply(sc->conn, &s);
    run(sc->conn, "CREATE ROLE mr_test_reader; GRANT USAGE ON SCHEMA millrace TO mr_test_reader;"
                  "GRANT SELECT ON ALL TABLES IN SCHEMA millrace TO mr_test_reader;"
                  "SET ROLE mr_test_reader");
    assert_int_equal(apply(sc->conn, &s), 0);
    mr_log_shape shape;
    assert_ok(mr__log_shape_read(sc->conn, &s.log, &shape));
    assert_error(mr__log_shape_check(sc->conn, &shape, true), MR_E_LOG, "GRANT SELECT ON");
    run(sc->conn, "RESET ROLE; DROP OWNED BY mr_test_reader; DROP ROLE mr_test_reader");
}

static void script_runs_twice(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    setting s;
    setting_init(&s);
    set_odd_names(&s);
    char *script = NULL;
    assert_ok(mr__schema_script(&s.input, &script));
    run(conn, "SET client_min_messages = warning");
    run(conn, script);
    run(conn, script);
    free(script);
    check_odd_names(conn);
    assert_int_equal(apply(conn, &s), 0);
    assert_ok(mr__schema_require(conn, &s.input));
}

static void script_without_log(void **state)
{
    (void)state;
    setting s;
    setting_init(&s);
    s.input.no_log = true;
    char *script = NULL;
    assert_ok(mr__schema_script(&s.input, &script));
    assert_null(strstr(script, "append_events"));
    assert_null(strstr(script, "\"public\""));
    assert_null(strstr(script, "{{"));
    free(script);
}

/* ---- The fence ------------------------------------------------------------------------------ */

#define WORKER_A "'00000000-0000-0000-0000-00000000000a'"
#define WORKER_B "'00000000-0000-0000-0000-00000000000b'"

static void assert_sqlstate(PGconn *conn, const char *sql, const char *state, const char *text)
{
    PGresult *result = PQexec(conn, sql);
    const char *got = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    if (got == NULL || strcmp(got, state) != 0 ||
        strstr(PQresultErrorMessage(result), text) == NULL)
        fail_msg("%s: %s %s", sql, got == NULL ? "ok" : got, PQresultErrorMessage(result));
    PQclear(result);
}

static void fence(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    setting s;
    setting_init(&s);
    apply(conn, &s);
    assert_sqlstate(conn, "SELECT millrace.advance_checkpoint('c', " WORKER_A ", 0, 1)", "MR004",
                    "no checkpoint");
    run(conn, "INSERT INTO millrace.consumer_checkpoints (consumer_name) VALUES ('c')");
    run(conn, "SELECT millrace.advance_checkpoint('c', " WORKER_A ", 0, 10)"); /* nobody owns it */
    run(conn, "INSERT INTO millrace.worker_nodes (worker_id) VALUES (" WORKER_A "), (" WORKER_B ");"
              "INSERT INTO millrace.consumer_assignments VALUES ('c', " WORKER_A ")");
    run(conn, "SELECT millrace.advance_checkpoint('c', " WORKER_A ", 10, 20)");
    assert_sqlstate(conn, "SELECT millrace.advance_checkpoint('c', " WORKER_A ", 10, 30)", "MR002",
                    "is at 20, not at 10");
    assert_sqlstate(conn, "SELECT millrace.advance_checkpoint('c', " WORKER_B ", 20, 30)", "MR003",
                    "0000000a");
    assert_sqlstate(conn, "SELECT millrace.advance_checkpoint('c', " WORKER_A ", 20, 19)", "22023",
                    "cannot go back");
    assert_int_equal(number(conn, "SELECT last_position FROM millrace.consumer_checkpoints"), 20);
    run(conn, "SELECT millrace.publish(5); SELECT millrace.publish(3)");
    assert_int_equal(number(conn, "SELECT position FROM millrace.log_published"), 5);
}

/* While a batch is open the leader moves its consumer and a worker goes, without waiting. */
static void leader_never_waits_for_a_batch(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    setting s;
    setting_init(&s);
    apply(conn, &s);
    run(conn, "INSERT INTO millrace.consumer_checkpoints (consumer_name) VALUES ('c');"
              "INSERT INTO millrace.worker_nodes (worker_id) VALUES (" WORKER_A "), (" WORKER_B ");"
              "INSERT INTO millrace.consumer_assignments VALUES ('c', " WORKER_A ")");
    run(conn, "BEGIN; SELECT millrace.advance_checkpoint('c', " WORKER_A ", 0, 1)");
    PGconn *leader = scratch_connect(*state);
    run(leader, "SET lock_timeout = '200ms'");
    run(leader, "UPDATE millrace.consumer_assignments SET worker_id = " WORKER_B);
    run(leader, "UPDATE millrace.worker_nodes SET heartbeat_at = now()");
    run(leader, "DELETE FROM millrace.worker_nodes WHERE worker_id = " WORKER_A);
    PQfinish(leader);
    run(conn, "COMMIT");
    assert_sqlstate(conn, "SELECT millrace.advance_checkpoint('c', " WORKER_A ", 1, 2)", "MR003",
                    "0000000b");
}

static void hot_updates(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    setting s;
    setting_init(&s);
    apply(conn, &s);
    run(conn, "INSERT INTO millrace.consumer_checkpoints (consumer_name) SELECT 'c' || i"
              " FROM generate_series(0, 9) i;"
              "INSERT INTO millrace.worker_nodes (worker_id) VALUES (" WORKER_A ")");
    for (int i = 0; i < 200; i++) {
        char sql[256];
        (void)snprintf(sql, sizeof(sql), "SELECT millrace.advance_checkpoint('c%d', NULL, %d, %d)",
                       i % 10, i / 10, i / 10 + 1);
        run(conn, sql);
        run(conn, "UPDATE millrace.worker_nodes SET heartbeat_at = clock_timestamp()");
        run(conn, "SELECT millrace.append('T', 'hot', -1, '{\"type\":\"E\"}')");
    }
    run(conn, "SELECT pg_stat_force_next_flush()");
    static const char *const tables[] = {"consumer_checkpoints", "worker_nodes", "aggregate_heads"};
    for (size_t i = 0; i < 3; i++) {
        char sql[256];
        (void)snprintf(sql, sizeof(sql),
                       "SELECT CASE WHEN n_tup_upd >= 199 THEN n_tup_upd - n_tup_hot_upd"
                       " ELSE -1 END FROM pg_stat_user_tables WHERE relname = '%s'",
                       tables[i]);
        /* A snapshot of autovacuum may keep one page from being pruned for a moment. */
        assert_in_range(number(conn, sql), 0, 10);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        TEST(apply_twice),
        TEST(apply_in_transaction_is_refused),
        TEST(newer_database_is_refused),
        TEST(failed_step_leaves_nothing),
        TEST(concurrent_apply),
        TEST(odd_table_names),
        TEST(two_fleets_in_one_schema),
        TEST(existing_worker_tables),
        TEST(existing_log_is_left_alone),
        TEST(no_log),
        TEST(stream_naming),
        TEST(without_rights),
        TEST(script_runs_twice),
        cmocka_unit_test(script_without_log),
        TEST(fence),
        TEST(leader_never_waits_for_a_batch),
        TEST(hot_updates),
    };
    return cmocka_run_group_tests_name("schema", tests, NULL, NULL);
}
