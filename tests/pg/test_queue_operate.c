/* A queue from its operator's side, on each form of table: what is listed, what each order does to
 * each state, and that every job that was meant is told. */
#include "queue_fixture.h"

#include "queue/operate.h"
#include "runtime/conf_queue.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mr_conf *conf;

static void begin(void **state, queue_test *t)
{
    queue_begin(state, t);
    conf = mr_conf_new();
    mr_queue *queue = mr_queue_new("work");
    assert_ok(mr_queue_set(queue, "table", "work w"));
    if (t->form == FORM_VIEW)
        assert_ok(mr_queue_set(queue, "view", "work_seen AS w"));
    assert_ok(mr_queue_set(queue, "columns", "queued_at=created_at"));
    assert_ok(mr_queue_set(queue, "order", "w.created_at"));
    assert_ok(mr_queue_set(queue, "sql", "SELECT 1"));
    assert_ok(mr_conf_take_queue(conf, queue));
}

static void end(queue_test *t)
{
    mr_conf_free(conf);
    queue_end(t);
}

static mr_job_filter *filter_of(const char *field, const char *value)
{
    mr_job_filter *filter = mr_job_filter_new();
    if (field != NULL)
        assert_ok(mr_job_filter_add(filter, field, value));
    return filter;
}

static const char *cell(const PGresult *rows, int row, const char *column)
{
    int number = PQfnumber(rows, column);
    if (number < 0)
        fail_msg("no column %s", column);
    return PQgetvalue(rows, row, number);
}

/* The listing's ids, by commas. */
static const char *listed(queue_test *t, const mr_job_filter *filter)
{
    static char text[512];
    PGresult *rows = NULL;
    assert_ok(mr_queue_jobs(t->conn, conf, "work", filter, &rows));
    text[0] = '\0';
    for (int i = 0; i < PQntuples(rows); i++) {
        size_t used = strlen(text);
        (void)snprintf(text + used, sizeof(text) - used, "%s%s", i == 0 ? "" : ",",
                       cell(rows, i, "id"));
    }
    PQclear(rows);
    return text;
}

/* "id was>state done note" of each row. */
static const char *told(PGresult *rows)
{
    static char text[2048];
    text[0] = '\0';
    for (int i = 0; i < PQntuples(rows); i++) {
        size_t used = strlen(text);
        (void)snprintf(text + used, sizeof(text) - used, "%s%s %s>%s%s%s%s", i == 0 ? "" : "\n",
                       cell(rows, i, "id"), cell(rows, i, "was"), cell(rows, i, "state"),
                       cell(rows, i, "done")[0] == 't' ? "" : " not",
                       cell(rows, i, "note")[0] == '\0' ? "" : ": ", cell(rows, i, "note"));
    }
    PQclear(rows);
    return text;
}

/* One of each state; 3 runs and beats, 7 runs and is silent for more than the conf's 30 s. */
static void seven(queue_test *t)
{
    rows(t,
         "id, state, created_at, started_at, last_heartbeat_at, finished_at, num_failures,"
         " num_resets, failure_message, worker_hostname",
         "(1, 'queued', now() - interval '50 s', NULL, NULL, NULL, 0, 0, NULL, ''),"
         "(2, 'errored', now() - interval '2 h', now() - interval '1 h', now() - interval '1 h',"
         " now() - interval '1 h', 1, 0, 'Socket closed', 'h'),"
         "(3, 'processing', now(), now(), now(), NULL, 0, 0, NULL, 'h'),"
         "(4, 'completed', now(), now(), now(), now(), 0, 0, NULL, 'h'),"
         "(5, 'failed', now(), now(), now(), now(), 3, 2, 'disk FULL', 'h'),"
         "(6, 'canceled', now(), now(), now(), now(), 0, 0, NULL, 'h'),"
         "(7, 'processing', now(), now() - interval '40 s', now() - interval '40 s', NULL, 0, 0, "
         "NULL,"
         " 'h')");
}

static void lists(void **state)
{
    queue_test t;
    begin(state, &t);
    seven(&t);
    assert_string_equal(listed(&t, NULL), "7,6,5,4,3,2,1");
    static const struct {
        const char *field, *value, *ids;
    } cases[] = {
        {"state", "failed", "5"}, {"state", "queued, errored,processing", "7,3,2,1"},
        {"id", "3", "3"},         {"id", "99", ""},
        {"error", "full", "5"},   {"error", "%", ""}, /* a text, no pattern */
        {"limit", "2", "7,6"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        mr_job_filter *filter = filter_of(cases[i].field, cases[i].value);
        assert_string_equal(listed(&t, filter), cases[i].ids);
        mr_job_filter_free(filter);
    }
    char when[64];
    (void)snprintf(when, sizeof(when), "%s", value(t.conn, "SELECT now() - interval '10 min'"));
    mr_job_filter *filter = filter_of("before", when);
    assert_string_equal(listed(&t, filter), "2"); /* ended an hour ago */
    assert_ok(mr_job_filter_add(filter, "id", "1"));
    assert_ok(mr_job_filter_add(filter, "id", "2"));
    assert_string_equal(listed(&t, filter), "2");
    mr_job_filter_free(filter);
    PGresult *rows = NULL;
    assert_ok(mr_queue_jobs(t.conn, conf, "work", NULL, &rows));
    assert_string_equal(cell(rows, 0, "stalled"), "t");
    assert_string_equal(cell(rows, 4, "stalled"), "f");
    assert_string_equal(cell(rows, 4, "cancel"), "f");
    assert_string_equal(cell(rows, 2, "failure_message"), "disk FULL");
    assert_string_equal(cell(rows, 2, "num_resets"), "2");
    PQclear(rows);
    end(&t);
}

static void shows(void **state)
{
    queue_test t;
    begin(state, &t);
    rows(&t, "id, payload, execution_logs",
         "(1, 'a \"text\"', ARRAY['{\"a\": 1}', '\"b\"']::json[]), (2, 'x', NULL)");
    PGresult *found = NULL;
    assert_ok(mr_queue_job(t.conn, conf, "work", "1", &found));
    assert_int_equal(PQntuples(found), 1);
    assert_string_equal(cell(found, 0, "execution_logs"), "[{\"a\": 1},\"b\"]");
    assert_non_null(strstr(cell(found, 0, "values"), "\"payload\":\"a \\\"text\\\"\""));
    if (t.form == FORM_VIEW)
        assert_non_null(strstr(cell(found, 0, "values"), "\"new_field\":7"));
    assert_string_equal(cell(found, 0, "lease_generation"), t.form == FORM_PLAIN ? "" : "0");
    PQclear(found);
    assert_ok(mr_queue_job(t.conn, conf, "work", "2", &found));
    assert_string_equal(cell(found, 0, "execution_logs"), "[]");
    PQclear(found);
    assert_error(mr_queue_job(t.conn, conf, "work", "3", &found), MR_E_USAGE, "no job 3");
    assert_error(mr_queue_job(t.conn, conf, "work", "x", &found), MR_E_USAGE,
                 "that is no id of queue work");
    assert_error(mr_queue_job(t.conn, conf, "work", "", &found), MR_E_USAGE, "not empty");
    assert_error(mr_queue_job(t.conn, conf, "wrok", "1", &found), MR_E_USAGE,
                 "did you mean 'work'?");
    end(&t);
}

static void retries(void **state)
{
    queue_test t;
    begin(state, &t);
    seven(&t);
    PGresult *done = NULL;
    mr_job_filter *filter = filter_of(NULL, NULL);
    static const char *const ids[] = {"5", "1", "99", "3", "4", "2", "6", "5"};
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
        assert_ok(mr_job_filter_add(filter, "id", ids[i]));
    assert_ok(mr_queue_retry(t.conn, conf, "work", filter, false, false, &done));
    assert_string_equal(told(done), "5 failed>queued\n"
                                    "1 queued>queued not: it is queued already\n"
                                    "99 > not: the queue has no such job\n"
                                    "3 processing>processing not: it is running; wait for its end, "
                                    "or cancel it first\n"
                                    "4 completed>completed not: it is completed; requeue runs it "
                                    "once more\n"
                                    "2 errored>queued\n"
                                    "6 canceled>queued");
    assert_string_equal(row(&t, 5,
                            "state, num_failures, num_resets, failure_message,"
                            " started_at IS NULL, finished_at IS NULL,"
                            " created_at > now() - interval '1 min', cancel"),
                        "queued|3|2|disk FULL|t|t|t|f");
    /* Claimed at once, in spite of what is to come. */
    run(t.conn, "UPDATE work SET state = 'failed', process_after = now() + interval '1 h',"
                " created_at = now() - interval '1 day' WHERE id = 5");
    mr_job_filter_free(filter);
    filter = filter_of("error", "disk");
    assert_ok(mr_queue_retry(t.conn, conf, "work", filter, false, true, &done));
    assert_string_equal(told(done), "5 failed>queued");
    assert_string_equal(row(&t, 5, "num_failures, num_resets, process_after <= clock_timestamp()"),
                        "0|0|t");
    mr_job_filter_free(filter);
    assert_error(mr_queue_retry(t.conn, conf, "work", NULL, false, false, &done), MR_E_USAGE,
                 "say which jobs of queue work to retry");
    assert_ok(mr_queue_retry(t.conn, conf, "work", NULL, true, false, &done));
    assert_string_equal(told(done), "");
    end(&t);
}

static void cancels(void **state)
{
    queue_test t;
    begin(state, &t);
    seven(&t);
    PGresult *done = NULL;
    mr_job_filter *filter = filter_of(NULL, NULL);
    static const char *const ids[] = {"1", "2", "3", "4", "5"};
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
        assert_ok(mr_job_filter_add(filter, "id", ids[i]));
    assert_ok(mr_queue_cancel(t.conn, conf, "work", filter, false, "not wanted", &done));
    assert_string_equal(told(done), "1 queued>canceled\n"
                                    "2 errored>canceled\n"
                                    "3 processing>processing: its worker is told with its next "
                                    "heartbeat\n"
                                    "4 completed>completed not: it has ended: completed\n"
                                    "5 failed>failed not: it has ended: failed");
    assert_string_equal(row(&t, 1, "state, failure_message, finished_at IS NOT NULL"),
                        "canceled|not wanted|t");
    assert_string_equal(row(&t, 3, "state, cancel, finished_at IS NULL"), "processing|t|t");
    mr_job_filter_free(filter);
    /* The rest of those that can be, without a reason; 3 was asked. */
    assert_ok(mr_queue_cancel(t.conn, conf, "work", NULL, true, NULL, &done));
    assert_string_equal(told(done), "3 processing>processing not: its worker was asked already\n"
                                    "7 processing>processing: its worker is told with its next "
                                    "heartbeat");
    assert_error(mr_queue_cancel(t.conn, conf, "work", NULL, true, "\xff", &done), MR_E_USAGE,
                 "UTF-8");
    end(&t);
}

static void cancels_without_column(void **state)
{
    queue_test t;
    begin(state, &t);
    if (t.form == FORM_PLAIN) {
        seven(&t);
        run(t.conn, "ALTER TABLE work DROP COLUMN cancel");
        PGresult *done = NULL;
        assert_ok(mr_queue_cancel(t.conn, conf, "work", NULL, true, NULL, &done));
        assert_string_equal(
            told(done),
            "1 queued>canceled\n2 errored>canceled\n"
            "3 processing>processing not: it is running, and the table has no column by which its "
            "worker could hear of it: ALTER TABLE \"public\".\"work\" ADD COLUMN cancel boolean "
            "NOT NULL DEFAULT false; then restart the workers\n"
            "7 processing>processing not: it is running, and the table has no column by which its "
            "worker could hear of it: ALTER TABLE \"public\".\"work\" ADD COLUMN cancel boolean "
            "NOT NULL DEFAULT false; then restart the workers");
        /* An errored one keeps its message. */
        assert_string_equal(row(&t, 2, "state, failure_message"), "canceled|Socket closed");
        PGresult *rows = NULL;
        assert_ok(mr_queue_jobs(t.conn, conf, "work", NULL, &rows));
        assert_string_equal(cell(rows, 0, "cancel"), "");
        PQclear(rows);
    }
    end(&t);
}

static void requeues(void **state)
{
    queue_test t;
    begin(state, &t);
    seven(&t);
    PGresult *done = NULL;
    run(t.conn, "UPDATE work SET cancel = true WHERE id = 7");
    mr_job_filter *filter = filter_of(NULL, NULL);
    static const char *const ids[] = {"1", "2", "3", "4", "5", "6", "7"};
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
        assert_ok(mr_job_filter_add(filter, "id", ids[i]));
    assert_ok(mr_queue_requeue(t.conn, conf, "work", filter, false, NULL, 60000, true, &done));
    assert_string_equal(told(done), "1 queued>queued\n2 errored>queued\n"
                                    "3 processing>processing not: it is running; wait for its end, "
                                    "or cancel it first\n"
                                    "4 completed>queued\n5 failed>queued\n6 canceled>queued\n"
                                    "7 processing>queued");
    assert_string_equal(row(&t, 7,
                            "state, cancel, started_at IS NULL, num_failures, num_resets,"
                            " process_after BETWEEN now() + interval '50 s'"
                            " AND now() + interval '70 s'"),
                        "queued|f|t|0|0|t");
    assert_ok(mr_queue_requeue(t.conn, conf, "work", filter, false, "2030-01-02T03:04:05Z", 0,
                               false, &done));
    (void)told(done);
    assert_string_equal(row(&t, 5, "process_after = '2030-01-02T03:04:05Z'"), "t");
    assert_error(
        mr_queue_requeue(t.conn, conf, "work", filter, false, "tomorrowish", 0, false, &done),
        MR_E_USAGE, "a time looks like");
    assert_error(mr_queue_requeue(t.conn, conf, "work", filter, false, NULL, -1, false, &done),
                 MR_E_USAGE, "delay");
    mr_job_filter_free(filter);
    run(t.conn, "UPDATE work SET state = 'completed' WHERE id = 4");
    /* All means neither what is completed nor what runs. */
    assert_ok(mr_queue_requeue(t.conn, conf, "work", NULL, true, NULL, 0, false, &done));
    assert_int_equal(PQntuples(done), 5);
    PQclear(done);
    filter = filter_of("state", "completed");
    assert_ok(mr_queue_requeue(t.conn, conf, "work", filter, false, NULL, 0, false, &done));
    assert_string_equal(told(done), "4 completed>queued");
    mr_job_filter_free(filter);
    end(&t);
}

/* A row that another session has locked is told, not waited for; one that a trigger protects too.
 */
static void locked_rows(void **state)
{
    queue_test t;
    begin(state, &t);
    seven(&t);
    PGconn *other = scratch_connect(t.s);
    run(other, "BEGIN; SELECT FROM work WHERE id = 5 FOR UPDATE");
    PGresult *done = NULL;
    assert_ok(mr_queue_retry(t.conn, conf, "work", NULL, true, false, &done));
    assert_string_equal(told(done), "2 errored>queued\n"
                                    "5 failed>failed not: another session has its row locked, or "
                                    "removed it just now; try again\n"
                                    "6 canceled>queued");
    run(other, "ROLLBACK");
    PQfinish(other);
    run(t.conn, "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
                "CREATE TRIGGER no BEFORE UPDATE ON work FOR EACH ROW EXECUTE FUNCTION no()");
    assert_ok(mr_queue_retry(t.conn, conf, "work", NULL, true, false, &done));
    assert_string_equal(told(done), "5 failed>failed not: the table did not take the change; has "
                                    "it a trigger?");
    run(t.conn, "DROP FUNCTION no() CASCADE");
    end(&t);
}

/* Completes job 5 as soon as a session sleeps. */
static void *complete_meanwhile(void *user)
{
    PGconn *other = user;
    while (number(other, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == 0)
        continue;
    run(other, "UPDATE work SET state = 'completed' WHERE id = 5");
    return NULL;
}

/* The decision was about a failed job; by the time its row is locked it is another one. */
static void changed_meanwhile(void **state)
{
    queue_test t;
    begin(state, &t);
    seven(&t);
    mr_conf_free(conf);
    conf = mr_conf_new();
    mr_queue *queue = mr_queue_new("work");
    assert_ok(mr_queue_set(queue, "table", "work w"));
    assert_ok(mr_queue_set(queue, "columns", "queued_at=created_at"));
    assert_ok(mr_queue_set(queue, "condition", "pg_sleep(0.5)::text = ''"));
    assert_ok(mr_queue_set(queue, "sql", "SELECT 1"));
    assert_ok(mr_conf_take_queue(conf, queue));
    PGconn *other = scratch_connect(t.s);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, complete_meanwhile, other), 0);
    mr_job_filter *filter = filter_of("id", "5");
    PGresult *done = NULL;
    assert_ok(mr_queue_requeue(t.conn, conf, "work", filter, false, NULL, 0, false, &done));
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(told(done), "5 failed>completed not: it changed just now, from failed");
    assert_string_equal(row(&t, 5, "state"), "completed");
    mr_job_filter_free(filter);
    PQfinish(other);
    end(&t);
}

/* Rows of the same table that are another queue's cannot be reached, by id or otherwise. */
static void other_queues_rows(void **state)
{
    queue_test t;
    begin(state, &t);
    seven(&t);
    mr_conf_free(conf);
    conf = mr_conf_new();
    mr_queue *queue = mr_queue_new("work");
    assert_ok(mr_queue_set(queue, "table", "work w"));
    if (t.form == FORM_VIEW) {
        run(t.conn, "CREATE OR REPLACE VIEW work_seen AS SELECT w.*, w.id * 7 AS new_field"
                    " FROM work w WHERE id <> 5");
        assert_ok(mr_queue_set(queue, "view", "work_seen AS w"));
    } else {
        assert_ok(mr_queue_set(queue, "condition", "w.id <> 5 -- no more"));
    }
    assert_ok(mr_queue_set(queue, "columns", "queued_at=created_at"));
    assert_ok(mr_queue_set(queue, "sql", "SELECT 1"));
    assert_ok(mr_conf_take_queue(conf, queue));
    assert_string_equal(listed(&t, NULL), "7,6,4,3,2,1");
    mr_job_filter *filter = filter_of("id", "5");
    PGresult *done = NULL;
    assert_ok(mr_queue_retry(t.conn, conf, "work", filter, false, false, &done));
    assert_string_equal(told(done), "5 > not: the queue has no such job");
    assert_error(mr_queue_job(t.conn, conf, "work", "5", &done), MR_E_USAGE, "no job 5");
    mr_job_filter_free(filter);
    end(&t);
}

static void summary(void **state)
{
    queue_test t;
    begin(state, &t);
    queue_schema(&t);
    seven(&t);
    run(t.conn, "INSERT INTO work (id, state) SELECT g, 'completed'"
                " FROM generate_series(100, 12000) g; ANALYZE work");
    mr_queue *broken = mr_queue_new("broken");
    assert_ok(mr_queue_set(broken, "table", "nowhere"));
    assert_ok(mr_queue_set(broken, "sql", "SELECT 1"));
    assert_ok(mr_conf_take_queue(conf, broken));
    PGresult *rows = NULL;
    assert_ok(mr_list(t.conn, conf, "queues", &rows));
    assert_int_equal(PQntuples(rows), 2);
    static const char *const wanted[][2] = {
        {"queue", "work"},   {"table", "\"public\".\"work\""},
        {"queued", "1"},     {"errored", "1"},
        {"processing", "2"}, {"completed", "10000"},
        {"failed", "1"},     {"canceled", "1"},
        {"stalled", "1"},    {"workers", "0"},
        {"problem", ""},     {"rough", "{\"completed\": \"at least\"}"},
    };
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        assert_string_equal(cell(rows, 0, wanted[i][0]), wanted[i][1]);
    /* The errored one waits since an hour minus retry_after. */
    assert_true(strtod(cell(rows, 0, "oldest_wait_seconds"), NULL) > 3500);
    assert_string_equal(cell(rows, 1, "queue"), "broken");
    assert_non_null(strstr(cell(rows, 1, "problem"), "there is no table nowhere"));
    assert_string_equal(cell(rows, 1, "queued"), "");
    PQclear(rows);
    /* A table too large to be counted: the planner's word is taken. */
    run(t.conn, "SET seq_page_cost = 100000; SET random_page_cost = 100000");
    assert_ok(mr_list(t.conn, conf, "queues", &rows));
    run(t.conn, "RESET seq_page_cost; RESET random_page_cost");
    assert_non_null(strstr(cell(rows, 0, "rough"), "\"completed\": \"estimate\""));
    assert_non_null(strstr(cell(rows, 0, "rough"), "\"oldest_wait_seconds\": \"unknown\""));
    int64_t guess = strtoll(cell(rows, 0, "completed"), NULL, 10);
    assert_true(guess > 11000 && guess < 13000);
    assert_true(PQgetisnull(rows, 0, PQfnumber(rows, "oldest_wait_seconds")));
    PQclear(rows);
    mr_conf_free(conf);
    conf = mr_conf_new();
    assert_ok(mr_list(t.conn, conf, "queues", &rows));
    assert_int_equal(PQntuples(rows), 0);
    assert_true(PQfnumber(rows, "rough") >= 0);
    PQclear(rows);
    end(&t);
}

/* Names, types and clocks as a user's table may have them. */
static void odd_table(void **state)
{
    queue_test t;
    begin(state, &t);
    mr_conf_free(conf);
    conf = mr_conf_new();
    run(t.conn,
        "CREATE TYPE \"Zu{st}and\" AS ENUM"
        " ('queued','processing','completed','errored','failed','canceled');"
        "CREATE TABLE \"Wo'rk {t.id}\" (\"I\"\"D\" uuid PRIMARY KEY, \"select\" \"Zu{st}and\" NOT"
        " NULL DEFAULT 'queued', failure_message varchar(10), queued_at timestamp NOT NULL,"
        " started_at timestamp, finished_at timestamp, process_after timestamp NOT NULL DEFAULT"
        " '2020-01-01', num_resets int2, num_failures int8, last_heartbeat_at timestamp,"
        " execution_logs jsonb[] NOT NULL DEFAULT '{}', worker_hostname text);"
        "SET timezone = 'Asia/Tokyo';"
        "INSERT INTO \"Wo'rk {t.id}\" (\"I\"\"D\", \"select\", queued_at, finished_at)"
        " VALUES ('11111111-1111-1111-1111-111111111111', 'failed',"
        " now() AT TIME ZONE 'UTC' - interval '1 min', now() AT TIME ZONE 'UTC')");
    mr_queue *queue = mr_queue_new("odd");
    assert_ok(mr_queue_set(queue, "table", "\"Wo'rk {t.id}\" \"a b\""));
    assert_ok(mr_queue_set(queue, "columns", "id=I\"D,state=select"));
    assert_ok(mr_queue_set(queue, "sql", "SELECT 1"));
    assert_ok(mr_conf_take_queue(conf, queue));
    PGresult *rows = NULL;
    assert_ok(mr_queue_jobs(t.conn, conf, "odd", NULL, &rows));
    assert_int_equal(PQntuples(rows), 1);
    PQclear(rows);
    char before[64];
    (void)snprintf(before, sizeof(before), "%s", value(t.conn, "SELECT now() - interval '5 min'"));
    mr_job_filter *filter = filter_of("after", before);
    PGresult *done = NULL;
    assert_ok(mr_queue_requeue(t.conn, conf, "odd", filter, false, NULL, 3600000, true, &done));
    assert_string_equal(told(done), "11111111-1111-1111-1111-111111111111 failed>queued");
    assert_string_equal(value(t.conn, "SELECT process_after - (now() AT TIME ZONE 'UTC')"
                                      " BETWEEN interval '59 min' AND interval '61 min'"
                                      " AND (now() AT TIME ZONE 'UTC') - queued_at"
                                      " < interval '10 s'"
                                      " FROM \"Wo'rk {t.id}\""),
                        "t");
    assert_ok(mr_queue_cancel(t.conn, conf, "odd", filter, false, "a reason that is long", &done));
    assert_string_equal(told(done), "11111111-1111-1111-1111-111111111111 queued>canceled");
    assert_string_equal(value(t.conn, "SELECT failure_message FROM \"Wo'rk {t.id}\""),
                        "a reason t");
    mr_job_filter_free(filter);
    filter = filter_of("id", "12");
    assert_error(mr_queue_retry(t.conn, conf, "odd", filter, false, false, &done), MR_E_USAGE,
                 "that is no id of queue odd");
    mr_job_filter_free(filter);
    assert_ok(mr_queue_job(t.conn, conf, "odd", "11111111-1111-1111-1111-111111111111", &rows));
    assert_non_null(strstr(cell(rows, 0, "values"), "\"select\":\"canceled\""));
    PQclear(rows);
    queue_schema(&t);
    assert_ok(mr_list(t.conn, conf, "queues", &rows));
    assert_string_equal(cell(rows, 0, "canceled"), "1");
    assert_string_equal(cell(rows, 0, "problem"), "");
    PQclear(rows);
    run(t.conn, "DROP TABLE \"Wo'rk {t.id}\"; DROP TYPE \"Zu{st}and\"; RESET timezone");
    end(&t);
}

static void bad_filters(void **state)
{
    (void)state;
    mr_job_filter *filter = mr_job_filter_new();
    assert_error(mr_job_filter_add(filter, "stat", "x"), MR_E_USAGE, "did you mean state?");
    assert_error(mr_job_filter_add(filter, "state", "done"), MR_E_USAGE, "is not one of queued");
    assert_error(mr_job_filter_add(filter, "id", ""), MR_E_USAGE, "empty");
    assert_error(mr_job_filter_add(filter, "id", NULL), MR_E_USAGE, "empty");
    assert_error(mr_job_filter_add(filter, "error", "\xff"), MR_E_USAGE, "UTF-8");
    assert_error(mr_job_filter_add(filter, "limit", "0"), MR_E_USAGE, "from 1 to");
    assert_error(mr_job_filter_add(filter, "limit", "many"), MR_E_USAGE, "from 1 to");
    assert_true(mr__job_filter_empty(filter));
    mr_job_filter_free(filter);
    mr_job_filter_free(NULL);
}

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists),
        cmocka_unit_test(shows),
        cmocka_unit_test(retries),
        cmocka_unit_test(cancels),
        cmocka_unit_test(cancels_without_column),
        cmocka_unit_test(requeues),
        cmocka_unit_test(locked_rows),
        cmocka_unit_test(changed_meanwhile),
        cmocka_unit_test(other_queues_rows),
        cmocka_unit_test(summary),
        cmocka_unit_test(odd_table),
        cmocka_unit_test(bad_filters),
    };
    int failed = 0;
    for (int form = 0; form < FORM_COUNT; form++) {
        queue_test_form = (queue_form)form;
        failed += cmocka_run_group_tests_name(queue_form_name(queue_test_form), tests,
                                              scratch_setup, scratch_teardown);
    }
    return failed;
}
