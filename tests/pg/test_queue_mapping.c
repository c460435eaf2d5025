/* Tables as people have them: other names, other types, views; and mappings that cannot work, each
 * with the words that say so and what to do. */
#include "queue_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The columns that every table here has, apart from those a test is about. */
#define REST                                                                                       \
    " failure_message text, started_at timestamptz, finished_at timestamptz,"                      \
    " process_after timestamptz, num_resets int NOT NULL DEFAULT 0,"                               \
    " num_failures int NOT NULL DEFAULT 0, last_heartbeat_at timestamptz, execution_logs json[],"  \
    " worker_hostname text NOT NULL DEFAULT ''"
#define USUAL                                                                                      \
    "id int PRIMARY KEY, state text NOT NULL DEFAULT 'queued',"                                    \
    " queued_at timestamptz DEFAULT now()," REST

typedef struct table_test {
    queue_test t;
    mr_mapping mapping;
} table_test;

/* A schema of its own for each test, first on the search path. */
static void table_begin(void **state, table_test *x, const char *ddl, const char *table)
{
    *x = (table_test){.t = {.s = *state, .policy = mr__queue_policy_default()}};
    x->t.conn = x->t.s->conn;
    assert_ok(mr__names_init(&x->t.names, "millrace"));
    run(x->t.conn, "SET client_min_messages = warning; DROP SCHEMA IF EXISTS app CASCADE;"
                   "CREATE SCHEMA app; SET search_path = app");
    run(x->t.conn, ddl);
    assert_ok(mr__mapping_init(&x->mapping, "work"));
    assert_ok(mr__mapping_table(&x->mapping, table));
}

static mr_error *open_it(table_test *x)
{
    return mr__queue_open(x->t.conn, &x->mapping, &x->t.policy, &x->t.names, &x->t.store);
}

static void table_end(table_test *x)
{
    mr__queue_close(x->t.store);
    mr__mapping_free(&x->mapping);
}

/* Claims one job, heartbeats it, logs to it and finishes it; the id is what it should be. */
static void round_trip(table_test *x, const char *id, mr_outcome_kind kind, const char *became)
{
    mr_jobs *jobs = claim_as(&x->t, x->t.conn, "me", 1);
    assert_int_equal(mr__jobs_count(jobs), 1);
    mr_job_row job = mr__jobs_at(jobs, 0);
    assert_string_equal(job.id, id);
    mr_beat beat = {.id = job.id, .fence = job.fence};
    assert_ok(mr__queue_heartbeat(on_conn(x->t.conn), x->t.store, "me", &beat, 1));
    assert_int_equal(beat.state, MR_BEAT_OURS);
    mr_log_target target = {.id = job.id, .fence = &job.fence, .worker = "me"};
    assert_ok(mr__queue_log_add(on_conn(x->t.conn), x->t.store, &target, "{\"a\": 1}", NULL));
    assert_ok(mr__queue_log_set(on_conn(x->t.conn), x->t.store, &target, 1, "{\"a\": 2}"));
    assert_string_equal(finish_as(&x->t, x->t.conn, "me",
                                  (mr_outcome){.id = job.id,
                                               .fence = job.fence,
                                               .kind = kind,
                                               .message = "a message of some length",
                                               .delay = -1}),
                        became);
    int64_t number_of = 0, wait = 0;
    assert_ok(mr__queue_count(on_conn(x->t.conn), x->t.store, MR_IN_QUEUED, &number_of));
    assert_ok(mr__queue_wait(on_conn(x->t.conn), x->t.store, &wait));
    mr_resets resets;
    assert_ok(mr__queue_reset(on_conn(x->t.conn), x->t.store, NULL, &resets));
    assert_int_equal(resets.count, 0);
    mr__resets_free(&resets);
    mr__jobs_unref(jobs);
}

static void odd_names(void **state)
{
    table_test x;
    table_begin(state, &x,
                "CREATE SCHEMA IF NOT EXISTS \"My \"\"App\"\"\";"
                "DROP TABLE IF EXISTS \"My \"\"App\"\"\".\"Work; items\";"
                "CREATE TABLE \"My \"\"App\"\"\".\"Work; items\" (\"Id's\" int PRIMARY KEY,"
                " \"select\" text NOT NULL DEFAULT 'queued', \"fail \"\"msg\"\"\" text,"
                " \"q at\" timestamptz DEFAULT now(), s timestamptz, f timestamptz, p timestamptz,"
                " r int DEFAULT 0, n int DEFAULT 0, h timestamptz, \"Logs\" jsonb[], w text,"
                " \"Stop?\" boolean, g int, \"order\" text DEFAULT 'x')",
                "\"My \"\"App\"\"\".\"Work; items\" AS \"from\"");
    static const char *const names[][2] = {{"id", "Id's"},
                                           {"state", "select"},
                                           {"failure_message", "fail \"msg\""},
                                           {"queued_at", "q at"},
                                           {"started_at", "s"},
                                           {"finished_at", "f"},
                                           {"process_after", "p"},
                                           {"num_resets", "r"},
                                           {"num_failures", "n"},
                                           {"last_heartbeat_at", "h"},
                                           {"execution_logs", "Logs"},
                                           {"worker_hostname", "w"},
                                           {"cancel", "Stop?"},
                                           {"lease_generation", "g"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        assert_ok(mr__mapping_column(&x.mapping, names[i][0], names[i][1]));
    assert_ok(mr__mapping_order(&x.mapping, "\"from\".\"q at\", \"Id's\""));
    assert_ok(mr__mapping_value(&x.mapping, "order", NULL));
    assert_ok(mr__mapping_value(&x.mapping, "state, after", "upper(\"select\") -- trailing"));
    assert_ok(open_it(&x));
    assert_int_equal(mr__queue_shape(x.t.store)->order.count, 2);
    run(x.t.conn, "INSERT INTO \"My \"\"App\"\"\".\"Work; items\" (\"Id's\") VALUES (5)");
    round_trip(&x, "5", MR_OUTCOME_REQUEUE, "queued");
    /* An expression over a column that the claim changes sees the new value; the reference shows
     * the old one there. */
    mr_jobs *jobs = claim_as(&x.t, x.t.conn, "me", 1);
    mr_job_row job = mr__jobs_at(jobs, 0);
    assert_int_equal(job.fence, 2);
    assert_string_equal(job_value(&job, "order"), "x");
    assert_string_equal(job_value(&job, "state, after"), "PROCESSING");
    mr__jobs_unref(jobs);
    table_end(&x);
}

static void other_types(void **state)
{
    table_test x;
    table_begin(
        state, &x,
        "CREATE TYPE job_state AS ENUM ('queued', 'processing', 'completed', 'errored',"
        " 'failed');"
        "CREATE DOMAIN moment AS timestamp;"
        "CREATE TABLE jobs (id uuid PRIMARY KEY, state job_state NOT NULL DEFAULT 'queued',"
        " failure_message varchar(9), queued_at timestamp DEFAULT (now() AT TIME ZONE 'UTC'),"
        " started_at timestamp, finished_at moment, process_after moment,"
        " num_resets smallint NOT NULL DEFAULT 0, num_failures bigint NOT NULL DEFAULT 0,"
        " last_heartbeat_at timestamp, execution_logs jsonb[] NOT NULL DEFAULT '{}',"
        " worker_hostname varchar(4))",
        "jobs");
    assert_error(open_it(&x), MR_E_CONFIG,
                 "lacks a state: ALTER TYPE app.job_state ADD VALUE 'canceled'");
    run(x.t.conn, "ALTER TYPE app.job_state ADD VALUE 'canceled'");
    x.t.policy.retry_after = 1;
    x.t.policy.max_retries = 9;
    x.t.policy.stalled_max_age = MINUTES(5);
    /* A column without a time zone holds UTC, whatever the session thinks. */
    run(x.t.conn, "SET timezone = 'Asia/Tokyo'");
    assert_ok(open_it(&x));
    run(x.t.conn, "INSERT INTO jobs (id) VALUES ('0b62a3b4-0000-7000-8000-000000000001')");
    for (int i = 0; i < 2; i++)
        round_trip(&x, "0b62a3b4-0000-7000-8000-000000000001", MR_OUTCOME_ERROR, "errored");
    assert_string_equal(value(x.t.conn, "SELECT failure_message FROM jobs"), "a message");
    assert_string_equal(
        value(x.t.conn, "SELECT abs(extract(epoch FROM finished_at - (now() AT TIME ZONE 'UTC')))"
                        " < 60 FROM jobs"),
        "t");
    run(x.t.conn, "UPDATE jobs SET process_after = (now() AT TIME ZONE 'UTC') + '1 minute',"
                  " state = 'queued'");
    assert_int_equal(claim_one(&x.t), 0);
    run(x.t.conn, "RESET timezone");
    table_end(&x);
}

static void queues_on_one_table(void **state)
{
    table_test x;
    table_begin(state, &x, "CREATE TABLE jobs (kind text, " USUAL ")", "jobs j");
    assert_ok(mr__mapping_condition(&x.mapping, "j.kind = 'mail' -- only ours"));
    assert_ok(open_it(&x));
    run(x.t.conn, "INSERT INTO jobs (id, kind, state, last_heartbeat_at) VALUES"
                  " (1, 'report', 'queued', NULL), (2, 'mail', 'queued', NULL),"
                  " (3, 'report', 'processing', '2020-01-01'),"
                  " (4, 'mail', 'processing', '2020-01-01')");
    assert_int_equal(claim_one(&x.t), 2);
    mr_resets resets;
    assert_ok(mr__queue_reset(on_conn(x.t.conn), x.t.store, NULL, &resets));
    assert_int_equal(resets.count, 1);
    assert_string_equal(resets.rows[0].id, "4");
    mr__resets_free(&resets);
    int64_t count = 0;
    assert_ok(mr__queue_count(on_conn(x.t.conn), x.t.store, MR_IN_QUEUED, &count));
    assert_int_equal(count, 1);
    table_end(&x);
}

/* A view that joins, renames nothing it must not, shows a row more than once. */
static void views(void **state)
{
    table_test x;
    table_begin(state, &x,
                "CREATE TABLE jobs (repo int, " USUAL ", lease_generation int NOT NULL DEFAULT 0);"
                "CREATE TABLE repos (id int, name text, priority int);"
                "CREATE VIEW seen AS SELECT j.*, r.name, r.priority FROM jobs j"
                " JOIN repos r ON r.id = j.repo",
                "jobs j");
    assert_ok(mr__mapping_view(&x.mapping, "seen j")); /* the same alias does no harm */
    assert_ok(mr__mapping_order(&x.mapping, "priority DESC, id"));
    assert_ok(mr__mapping_condition(&x.mapping, "name <> 'frozen'"));
    assert_ok(mr__mapping_value(&x.mapping, "what", "j.name || ':' || j.state || ':' || id"));
    assert_ok(mr__mapping_value(&x.mapping, "running", "started_at IS NOT NULL"));
    assert_ok(open_it(&x));
    assert_int_equal(mr__queue_shape(x.t.store)->order.count, 0);
    assert_non_null(strstr(mr__queue_shape(x.t.store)->notes, "low-water mark"));
    run(x.t.conn, "INSERT INTO repos VALUES (1, 'low', 1), (2, 'high', 9), (3, 'frozen', 99);"
                  "INSERT INTO jobs (id, repo) VALUES (1, 1), (2, 2), (3, 3), (4, 2)");
    mr_jobs *jobs = claim_as(&x.t, x.t.conn, "me", 9);
    static const char *const wanted[] = {"high:processing:2", "high:processing:4",
                                         "low:processing:1"};
    assert_int_equal(mr__jobs_count(jobs), 3);
    for (size_t i = 0; i < 3; i++) {
        mr_job_row job = mr__jobs_at(jobs, i);
        assert_string_equal(job_value(&job, "what"), wanted[i]);
        assert_string_equal(job_value(&job, "running"), "t");
    }
    mr__jobs_unref(jobs);
    /* Only what the view and the condition show is reset. */
    run(x.t.conn, "UPDATE jobs SET state = 'processing', last_heartbeat_at = '2020-01-01'");
    mr_resets resets;
    assert_ok(mr__queue_reset(on_conn(x.t.conn), x.t.store, NULL, &resets));
    assert_int_equal(resets.count, 3);
    mr__resets_free(&resets);
    run(x.t.conn, "INSERT INTO repos VALUES (1, 'twice', 1)");
    jobs = claim_as(&x.t, x.t.conn, "me", 9);
    assert_int_equal(mr__jobs_count(jobs), 3);
    mr__jobs_unref(jobs);
    table_end(&x);
}

/* Two queues by their views alone: each looks after its own. */
static void views_without_a_condition(void **state)
{
    table_test x;
    table_begin(state, &x,
                "CREATE TABLE jobs (kind text, " USUAL ");"
                "CREATE VIEW mail AS SELECT * FROM jobs WHERE kind = 'mail'",
                "jobs");
    assert_ok(mr__mapping_view(&x.mapping, "mail"));
    assert_ok(open_it(&x));
    run(x.t.conn, "INSERT INTO jobs (id, kind, state, last_heartbeat_at) VALUES"
                  " (1, 'report', 'processing', '2020-01-01'),"
                  " (2, 'mail', 'processing', '2020-01-01')");
    mr_resets resets;
    assert_ok(mr__queue_reset(on_conn(x.t.conn), x.t.store, NULL, &resets));
    assert_int_equal(resets.count, 1);
    assert_string_equal(resets.rows[0].id, "2");
    mr__resets_free(&resets);
    table_end(&x);
}

/* A view may show a column of the table in its own way; only what the claim changed is the table's.
 */
static void views_own_values(void **state)
{
    table_test x;
    table_begin(state, &x,
                "CREATE TABLE jobs (" USUAL ", cancel bool NOT NULL DEFAULT false);"
                "CREATE VIEW seen AS SELECT id::int8 AS id, state::varchar(20) AS state, queued_at,"
                " process_after, finished_at, num_failures + 100 AS num_failures,"
                " 'stop'::text AS cancel, coalesce(failure_message, 'none') AS failure_message"
                " FROM jobs",
                "jobs");
    assert_ok(mr__mapping_view(&x.mapping, "seen"));
    assert_ok(open_it(&x));
    run(x.t.conn, "INSERT INTO jobs (id, failure_message) VALUES (1, 'old')");
    mr_jobs *jobs = claim_as(&x.t, x.t.conn, "me", 1);
    mr_job_row job = mr__jobs_at(jobs, 0);
    assert_string_equal(job_value(&job, "num_failures"), "100");
    assert_string_equal(job_value(&job, "cancel"), "stop");
    assert_string_equal(job_value(&job, "state"), "processing");
    assert_null(job_value(&job, "failure_message"));
    mr__jobs_unref(jobs);
    table_end(&x);
}

static void notes(void **state)
{
    table_test x;
    table_begin(state, &x, "CREATE TABLE jobs (" USUAL ")", "jobs");
    assert_ok(mr__mapping_order(&x.mapping, "queued_at, id"));
    assert_ok(open_it(&x));
    const char *told = mr__queue_shape(x.t.store)->notes;
    assert_non_null(strstr(told, "ADD COLUMN lease_generation bigint NOT NULL DEFAULT 0"));
    assert_non_null(strstr(told, "CREATE INDEX CONCURRENTLY ON \"app\".\"jobs\" (\"queued_at\", "
                                 "\"id\") WHERE \"state\" IN ('queued', 'errored')"));
    assert_non_null(strstr(told, "(\"id\") WHERE \"state\" = 'processing'"));
    table_end(&x);
    /* Who follows the advice hears no more. */
    table_begin(state, &x,
                "CREATE TABLE jobs (" USUAL ", lease_generation bigint NOT NULL DEFAULT 0);"
                "CREATE INDEX ON jobs (queued_at, id) WHERE state IN ('queued', 'errored');"
                "CREATE INDEX ON jobs (id) WHERE state = 'processing'",
                "jobs");
    assert_ok(mr__mapping_order(&x.mapping, "queued_at, id"));
    assert_ok(open_it(&x));
    assert_string_equal(mr__queue_shape(x.t.store)->notes, "");
    table_end(&x);
    table_begin(state, &x,
                "CREATE TABLE jobs (" USUAL "); CREATE INDEX ON jobs (last_heartbeat_at)", "jobs");
    assert_ok(open_it(&x));
    assert_non_null(strstr(mr__queue_shape(x.t.store)->notes, "every heartbeat writes to every"));
    table_end(&x);
}

/* Where a claim may start at a mark, and where new rows would come before it. */
static void marks(void **state)
{
    static const struct {
        const char *order;
        int keys;
    } cases[] = {{"", 1},
                 {"id", 1},
                 {"queued_at, id", 2},
                 {"queued_at, priority, id", 3},
                 {"seq", 1},
                 {"number", 1},
                 {"added", 1},
                 {"id DESC", 0},
                 {"queued_at DESC, id DESC", 0},
                 {"priority, id", 0},
                 {"token", 0},
                 {"due", 0},
                 {"started_at", 0},
                 {"queued_at, last_heartbeat_at", 0},
                 {"id + 1", 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        table_test x;
        table_begin(state, &x,
                    "CREATE TABLE jobs (" USUAL ", priority int, due timestamptz,"
                    " token uuid DEFAULT gen_random_uuid(), seq bigserial,"
                    " number int GENERATED BY DEFAULT AS IDENTITY,"
                    " added timestamptz DEFAULT CURRENT_TIMESTAMP)",
                    "jobs");
        assert_ok(mr__mapping_order(&x.mapping, cases[i].order));
        assert_ok(open_it(&x));
        if (mr__queue_shape(x.t.store)->order.count != cases[i].keys)
            fail_msg("order by %s: %d keys", cases[i].order,
                     mr__queue_shape(x.t.store)->order.count);
        assert_int_equal(strstr(mr__queue_shape(x.t.store)->notes, "low-water mark") != NULL,
                         cases[i].keys == 0);
        table_end(&x);
    }
}

static void wrong_relations(void **state)
{
    static const struct {
        const char *ddl, *table, *view, *text;
    } cases[] = {
        {"SELECT 1", "jobs", NULL, "there is no table jobs on the search path; create it or name"},
        {"SELECT 1", "app.jobs", NULL, "there is no table app.jobs; create it"},
        {"CREATE TABLE base (" USUAL "); CREATE VIEW jobs AS SELECT * FROM base", "jobs", NULL,
         "jobs is a view, and rows cannot be locked through one; name the table that holds the "
         "rows "
         "with `table:`"},
        {"CREATE MATERIALIZED VIEW jobs AS SELECT 1 AS id", "jobs", NULL, "jobs is a view"},
        {"CREATE SEQUENCE jobs", "jobs", NULL, "jobs is not a table"},
        {"CREATE EXTENSION IF NOT EXISTS postgres_fdw SCHEMA pg_catalog;"
         "DROP SERVER IF EXISTS far CASCADE; CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw;"
         "CREATE FOREIGN TABLE jobs (id int) SERVER far",
         "jobs", NULL, "jobs is a foreign table, whose rows cannot be locked"},
        {"CREATE TABLE jobs (" USUAL ")", "jobs", "seen", "there is no view seen"},
        {"CREATE TABLE jobs (" USUAL "); CREATE MATERIALIZED VIEW seen AS SELECT * FROM jobs",
         "jobs", "seen", "seen shows what was stored earlier"},
        {"CREATE TABLE jobs (" USUAL "); CREATE VIEW seen AS SELECT state, queued_at,"
         " process_after, finished_at FROM jobs",
         "jobs", "seen", "the view app.seen lacks the column 'id'"},
        {"CREATE TABLE jobs (" USUAL "); CREATE VIEW seen AS SELECT id, queued_at, finished_at"
         " FROM jobs",
         "jobs", "seen", "the view app.seen lacks the column 'process_after'"},
        {"CREATE TABLE jobs (" USUAL "); CREATE VIEW seen AS SELECT id::text, state, queued_at,"
         " process_after, finished_at FROM jobs",
         "jobs", "seen",
         "the view app.seen shows the column 'id' as pg_catalog.text, in the table it is "
         "pg_catalog.int4; show it as it is"},
        {"CREATE TABLE jobs (" USUAL "); CREATE VIEW seen AS SELECT id, state, queued_at,"
         " process_after AT TIME ZONE 'UTC' AS process_after, finished_at FROM jobs",
         "jobs", "seen",
         "shows the column 'process_after' as pg_catalog.\"timestamp\", in the table"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        table_test x;
        table_begin(state, &x, cases[i].ddl, cases[i].table);
        if (cases[i].view != NULL)
            assert_ok(mr__mapping_view(&x.mapping, cases[i].view));
        assert_error(open_it(&x), MR_E_CONFIG, cases[i].text);
        table_end(&x);
    }
}

static void wrong_columns(void **state)
{
    static const struct {
        const char *change, *text;
    } cases[] = {
        {"ALTER TABLE jobs DROP started_at, DROP num_resets",
         "app.jobs has no column 'num_resets'; add it: ALTER TABLE \"app\".\"jobs\" ADD COLUMN "
         "\"num_resets\" integer NOT NULL DEFAULT 0"},
        {"ALTER TABLE jobs DROP started_at, DROP num_resets", "ADD COLUMN \"started_at\""},
        {"ALTER TABLE jobs RENAME failure_message TO failure_mesage",
         "name the right one with `columns: {failure_message: failure_mesage}` or add it"},
        {"ALTER TABLE jobs ALTER state DROP DEFAULT, ALTER state TYPE int USING 1",
         "the column 'state' is of type pg_catalog.int4; state must be text"},
        {"ALTER TABLE jobs ALTER process_after TYPE date", "process_after must be timestamptz"},
        {"ALTER TABLE jobs ALTER num_failures TYPE numeric", "num_failures must be integer"},
        {"ALTER TABLE jobs ALTER execution_logs TYPE json USING NULL", "must be json[] or jsonb[]"},
        {"ALTER TABLE jobs ADD cancel int", "cancel must be boolean"},
        {"ALTER TABLE jobs ADD lease_generation smallint", "lease_generation must be bigint"},
        {"ALTER TABLE jobs ALTER finished_at SET NOT NULL",
         "the column 'finished_at' must take NULL: ALTER TABLE \"app\".\"jobs\" ALTER "
         "\"finished_at\" DROP NOT NULL"},
        {"ALTER TABLE jobs ALTER started_at TYPE timestamptz(0)",
         "keeps less than microseconds and there is no lease_generation"},
        {"ALTER TABLE jobs DROP CONSTRAINT jobs_pkey",
         "the column 'id' is no key: two rows may have the same; CREATE UNIQUE INDEX"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        table_test x;
        table_begin(state, &x, "CREATE TABLE jobs (" USUAL ")", "jobs");
        run(x.t.conn, cases[i].change);
        assert_error(open_it(&x), MR_E_CONFIG, cases[i].text);
        table_end(&x);
    }
}

static void wrong_expressions(void **state)
{
    table_test x;
    table_begin(state, &x, "CREATE TABLE jobs (" USUAL ")", "jobs j");
    assert_ok(mr__mapping_order(&x.mapping, "j.prioritty"));
    assert_ok(mr__mapping_condition(&x.mapping, "id + 1"));
    assert_ok(mr__mapping_value(&x.mapping, "twice", "id * true"));
    assert_ok(mr__mapping_column(&x.mapping, "queued_at", "queued_at"));
    mr_error *error = open_it(&x);
    assert_non_null(error);
    /* All of them in one message. */
    assert_non_null(strstr(mr_error_message(error), "queue work: condition: argument of WHERE"));
    assert_non_null(strstr(mr_error_message(error), "order: column j.prioritty does not exist"));
    assert_non_null(strstr(mr_error_message(error), "values: twice: operator does not exist"));
    mr_error_free(error);
    assert_error(mr__mapping_column(&x.mapping, "procces_after", "x"), MR_E_CONFIG,
                 "did you mean 'process_after'?");
    assert_error(mr__mapping_column(&x.mapping, "id", ""), MR_E_CONFIG, "1 to 63 bytes");
    assert_error(mr__mapping_value(&x.mapping, "twice", NULL), MR_E_CONFIG, "named twice");
    assert_error(mr__mapping_table(&x.mapping, "a b c"), MR_E_CONFIG, "too many words");
    table_end(&x);
    table_begin(state, &x, "CREATE TABLE jobs (" USUAL ")", "jobs j");
    assert_ok(mr__mapping_column(&x.mapping, "cancel", "stopped"));
    assert_error(open_it(&x), MR_E_CONFIG,
                 "no column 'stopped', which `columns:` names for cancel");
    table_end(&x);
}

static void expressions_out_of_place(void **state)
{
    table_test x;
    table_begin(state, &x, "CREATE TABLE jobs (" USUAL ")", "jobs j");
    assert_ok(mr__mapping_column(&x.mapping, "started_at", "finished_at"));
    assert_error(open_it(&x), MR_E_CONFIG,
                 "`columns:` names 'finished_at' for both started_at and finished_at");
    assert_ok(mr__mapping_column(&x.mapping, "started_at", "started_at"));
    /* What would leave its place in the statements. */
    assert_ok(mr__mapping_condition(&x.mapping, "true) OR (true"));
    assert_error(open_it(&x), MR_E_CONFIG, "condition: syntax error");
    assert_ok(mr__mapping_condition(&x.mapping, ""));
    assert_ok(mr__mapping_order(&x.mapping, "id LIMIT 1"));
    assert_error(open_it(&x), MR_E_CONFIG, "order: ");
    assert_ok(mr__mapping_order(&x.mapping, ""));
    assert_ok(mr__mapping_value(&x.mapping, "two", "1), (2"));
    assert_error(open_it(&x), MR_E_CONFIG, "values: two: syntax error");
    table_end(&x);
    table_begin(state, &x, "CREATE TABLE jobs (" USUAL ")", "jobs j");
    x.t.policy.stalled_max_age = 0;
    assert_error(open_it(&x), MR_E_CONFIG, "stalled_max_age");
    table_end(&x);
}

static void partitioned_table(void **state)
{
    table_test x;
    table_begin(state, &x,
                "CREATE TABLE jobs (id int, state text NOT NULL DEFAULT 'queued',"
                " queued_at timestamptz DEFAULT now()," REST ", PRIMARY KEY (id, state))"
                " PARTITION BY LIST (state);"
                "CREATE TABLE jobs_open PARTITION OF jobs FOR VALUES IN"
                " ('queued', 'errored', 'processing');"
                "CREATE TABLE jobs_done PARTITION OF jobs DEFAULT",
                "jobs");
    assert_ok(open_it(&x));
    run(x.t.conn, "INSERT INTO jobs (id) VALUES (1), (2)");
    round_trip(&x, "1", MR_OUTCOME_COMPLETE, "completed");
    round_trip(&x, "2", MR_OUTCOME_FAIL, "failed");
    assert_int_equal(number(x.t.conn, "SELECT count(*) FROM jobs_done"), 2);
    table_end(&x);
}

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_names),
        cmocka_unit_test(other_types),
        cmocka_unit_test(queues_on_one_table),
        cmocka_unit_test(views),
        cmocka_unit_test(views_without_a_condition),
        cmocka_unit_test(views_own_values),
        cmocka_unit_test(notes),
        cmocka_unit_test(marks),
        cmocka_unit_test(wrong_relations),
        cmocka_unit_test(wrong_columns),
        cmocka_unit_test(wrong_expressions),
        cmocka_unit_test(expressions_out_of_place),
        cmocka_unit_test(partitioned_table),
    };
    return cmocka_run_group_tests_name("queue mapping", tests, scratch_setup, scratch_teardown);
}
