/* Jobs handled by a statement: values of every type, one round trip with the outcome, names that
 * are wrong. */
#include "job_fixture.h"

#include <string.h>

static void sql_handler(job_test *t, const char *text)
{
    mr__job_handler_free(t->handler);
    t->handler = NULL;
    assert_ok(mr__job_handler_sql(text, t->q.store, &t->handler));
}

static void sql_runs(void **state)
{
    job_test t;
    job_begin(state, &t);
    run(t.q.conn, "CREATE TABLE copied (id int, payload text, data jsonb, at timestamptz,"
                  " tags text[], odd bytea, plus int, kind text, note text)");
    rows(&t.q, "id, payload, data, at, tags, \"Odd\"",
         "(1, $$'; DROP TABLE work; -- \\ \" é$$, '{\"n\": 12345678901234567890}',"
         " '2026-01-31 12:00:00.123456+02', '{a,\"b c\",NULL}', '\\x00ff27'),"
         " (2, NULL, NULL, NULL, NULL, NULL), (3, '', 'null', 'infinity', '{}', '')");
    sql_handler(&t, "INSERT INTO copied VALUES (:id, :payload, :data, :at, :tags, :Odd, :id + 1,"
                    " pg_typeof(:data)::text || ':payload', :data->>'n') -- :nothing");
    assert_ok(t.handler->check(t.handler, t.q.conn));
    for (int id = 1; id <= 3; id++) {
        job_claim(&t, id, -1);
        int64_t trips = mr__session_round_trips(t.session);
        assert_string_equal(job_run(&t), "completed|0");
        assert_true(t.job.written);
        assert_int_equal(mr__session_round_trips(t.session) - trips, 1);
    }
    assert_int_equal(number(t.q.conn, "SELECT count(*) FROM copied c JOIN work w USING (id) WHERE"
                                      " (c.payload, c.data, c.at, c.tags, c.odd) IS NOT DISTINCT"
                                      " FROM (w.payload, w.data, w.at, w.tags, w.\"Odd\")"
                                      " AND plus = id + 1 AND kind = 'jsonb:payload'"),
                     3);
    assert_string_equal(value(t.q.conn, "SELECT note FROM copied WHERE id = 1"),
                        "12345678901234567890");
    /* The statement's failure is the job's, and nothing remains. */
    sql_handler(&t, "INSERT INTO effects SELECT 1000 WHERE :id > 0");
    job_claim(&t, 4, -1);
    assert_non_null(strstr(job_run(&t), "failed|1|"));
    assert_int_equal(effects(&t), 0);
    job_end(&t);
}

static void no_handler(job_test *t, const char *text, const char *why)
{
    mr_job_handler *handler = NULL;
    assert_error(mr__job_handler_sql(text, t->q.store, &handler), MR_E_CONFIG, why);
    assert_null(handler);
}

static void sql_wrong(void **state)
{
    job_test t;
    job_begin(state, &t);
    no_handler(&t, "SELECT :paylod", "sql: unknown parameter :paylod; did you mean :payload?");
    no_handler(&t, "SELECT :zzzzzzzzzz", "a job of queue work has :id, :state");
    no_handler(&t, "SELECT $1", "$1 is no parameter");
    sql_handler(&t, "SELECT * FROM nowhere WHERE id = :id");
    assert_error(t.handler->check(t.handler, t.q.conn), MR_E_CONFIG, "nowhere");
    sql_handler(&t, "SELECT :data + 1");
    assert_error(t.handler->check(t.handler, t.q.conn), MR_E_CONFIG, "operator does not exist");
    sql_handler(&t, "COMMIT");
    assert_error(t.handler->check(t.handler, t.q.conn), MR_E_CONFIG, "not allowed");
    job_end(&t);
}

/* With a list of values these are the names, expressions among them. */
static void sql_values(void **state)
{
    job_test t;
    job_begin(state, &t);
    mr_mapping mapping;
    queue_mapping(&t.q, &mapping);
    assert_ok(mr__mapping_value(&mapping, "n", "w.id * 10"));
    assert_ok(mr__mapping_value(&mapping, "pair", "ROW(w.id, 'x')"));
    mr__queue_close(t.q.store);
    t.q.store = NULL;
    assert_ok(mr__queue_open(t.q.conn, &mapping, &t.q.policy, &t.q.names, &t.q.store));
    no_handler(&t, "SELECT :payload", "has :n, :pair");
    sql_handler(&t, "INSERT INTO effects SELECT :n WHERE :pair = '(7,x)'");
    assert_ok(t.handler->check(t.handler, t.q.conn));
    job_claim(&t, 7, -1);
    assert_string_equal(job_run(&t), "completed|0");
    assert_int_equal(number(t.q.conn, "SELECT n FROM effects"), 70);
    job_end(&t);
}

#define JOB_TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        JOB_TEST(sql_runs),
        JOB_TEST(sql_wrong),
        JOB_TEST(sql_values),
    };
    return cmocka_run_group_tests_name("queue sql", tests, NULL, NULL);
}
