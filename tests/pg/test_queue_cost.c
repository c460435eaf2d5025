/* What a claim costs, counted in the server's buffers, which unlike times are the same on every
 * machine: as finished rows pile up, and while a long transaction keeps vacuum from removing what
 * was claimed. Also that the plans are the ones meant. */
#include "queue_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 10, BULK = 500 };

static void make_table(queue_test *t)
{
    run(t->conn,
        "DROP VIEW IF EXISTS work_seen; DROP TABLE work;"
        "CREATE TABLE work (id bigserial PRIMARY KEY, state text NOT NULL DEFAULT 'queued',"
        " created_at timestamptz NOT NULL DEFAULT clock_timestamp(),"
        " started_at timestamptz, last_heartbeat_at timestamptz, finished_at timestamptz,"
        " process_after timestamptz, num_resets int NOT NULL DEFAULT 0,"
        " num_failures int NOT NULL DEFAULT 0, failure_message text,"
        " worker_hostname text NOT NULL DEFAULT '', execution_logs json[],"
        " cancel boolean NOT NULL DEFAULT false,"
        " lease_generation bigint NOT NULL DEFAULT 0, payload text DEFAULT 'x')"
        " WITH (autovacuum_enabled = off);"
        "CREATE INDEX ON work (created_at, id) WHERE state IN ('queued', 'errored');"
        "CREATE INDEX ON work (id) WHERE state = 'processing';"
        "CREATE VIEW work_seen AS SELECT w.*, w.id * 7 AS new_field FROM work w");
}

static void open_queue(queue_test *t, bool view)
{
    mr__queue_close(t->store);
    mr_mapping mapping;
    assert_ok(mr__mapping_init(&mapping, "work"));
    assert_ok(mr__mapping_table(&mapping, "work"));
    if (view)
        assert_ok(mr__mapping_view(&mapping, "work_seen"));
    assert_ok(mr__mapping_column(&mapping, "queued_at", "created_at"));
    assert_ok(mr__mapping_order(&mapping, "created_at, id"));
    assert_ok(mr__mapping_value(&mapping, "payload", NULL));
    assert_ok(mr__queue_open(t->conn, &mapping, &t->policy, &t->names, &t->store));
    assert_string_equal(mr__queue_shape(t->store)->notes, "");
}

/* The first "Shared Hit Blocks" and "Shared Read Blocks" of a plan in JSON are the whole's. */
static int64_t plan_number(const char *plan, const char *key)
{
    const char *found = strstr(plan, key);
    assert_non_null(found);
    return strtoll(found + strlen(key), NULL, 10);
}

/* Claims as the store does, under EXPLAIN; *plan (may be NULL) is for a closer look. */
static int64_t explain(queue_test *t, const mr_queue_call *call, char *plan, size_t size)
{
    MR_AUTO_BUF sql = {0};
    mr__buf_printf(&sql, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) %s", call->sql);
    PGresult *told = NULL;
    assert_ok(mr__pg_query(t->conn, &told, mr__buf_text(&sql), call->count, call->values));
    const char *text = PQgetvalue(told, 0, 0);
    int64_t buffers = plan_number(text, "\"Shared Hit Blocks\": ") +
                      plan_number(text, "\"Shared Read Blocks\": ");
    if (plan != NULL)
        (void)snprintf(plan, size, "%s", text);
    PQclear(told);
    return buffers;
}

static int64_t claim_cost(queue_test *t, const mr_mark *mark, mr_scan scan, char *plan, size_t size)
{
    mr_claim wanted = {.count = BATCH, .worker = "me"};
    MR_AUTO_CALL call = {0};
    assert_ok(mr__queue_claim_call(t->store, &wanted, mark, scan, &call));
    return explain(t, &call, plan, size);
}

static mr_jobs *claim_marked(queue_test *t, mr_mark *mark, const mr_clock *clock, int count)
{
    mr_claim wanted = {.count = count, .worker = "me"};
    mr_jobs *jobs = NULL;
    assert_ok(mr__queue_claim(on_conn(t->conn), t->store, &wanted, mark, clock, &jobs));
    return jobs;
}

/* Claims and completes `total` jobs in batches, as a worker does. */
static void consume(queue_test *t, mr_mark *mark, const mr_clock *clock, int total)
{
    mr_outcome *outcomes = calloc(BULK, sizeof(*outcomes));
    assert_non_null(outcomes);
    for (int done = 0; done < total;) {
        mr_jobs *jobs = claim_marked(t, mark, clock, BULK);
        size_t count = mr__jobs_count(jobs), late = 0;
        assert_true(count > 0);
        for (size_t i = 0; i < count; i++) {
            mr_job_row job = mr__jobs_at(jobs, i);
            outcomes[i] = (mr_outcome){.id = job.id, .fence = job.fence};
        }
        assert_ok(mr__queue_finish(on_conn(t->conn), t->store, "me", outcomes, count, mark, &late));
        assert_int_equal(late, 0);
        mr__jobs_unref(jobs);
        done += (int)count;
    }
    free(outcomes);
}

/* One claim, which sets the mark, then the cost of the next. */
static int64_t marked_cost(queue_test *t, mr_mark *mark, const mr_clock *clock)
{
    mr__jobs_unref(claim_marked(t, mark, clock, BATCH));
    assert_int_equal(mr__mark_plan(mark, clock->manual), MR_SCAN_MARK);
    return claim_cost(t, mark, MR_SCAN_MARK, NULL, 0);
}

static void costs(void **state, bool view)
{
    queue_test t;
    queue_begin(state, &t);
    make_table(&t);
    open_queue(&t, view);
    run(t.conn, "INSERT INTO work (payload) SELECT 'x' FROM generate_series(1, 60000)");
    run(t.conn, "VACUUM ANALYZE work");
    mr_clock clock = mr__clock_manual(0);
    mr_mark mark;
    mr__queue_mark_init(t.store, SECONDS(1), &mark);

    int64_t fresh = marked_cost(&t, &mark, &clock);
    print_message("%s, claim of %d: fresh %ld buffers\n", view ? "view" : "table", BATCH,
                  (long)fresh);

    /* Somebody's report runs for hours: nothing that is claimed now can be removed. */
    PGconn *report = scratch_connect(t.s);
    run(report, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM work");
    consume(&t, &mark, &clock, 50000);
    int64_t held = marked_cost(&t, &mark, &clock);
    int64_t below = claim_cost(&t, &mark, MR_SCAN_ALL, NULL, 0);
    print_message("  after 50,000 jobs under a held snapshot %ld (a look below the mark %ld)\n",
                  (long)held, (long)below);
    assert_true(held <= 2 * fresh);
    /* The mark is what does it: without it the claim walks over all that was claimed. */
    assert_true(below > held + 500);
    run(report, "COMMIT");
    PQfinish(report);

    run(t.conn, "INSERT INTO work (state, finished_at, created_at)"
                " SELECT 'completed', now(), now() - '1 day'::interval"
                " FROM generate_series(1, 1000000)");
    run(t.conn, "VACUUM ANALYZE work");
    int64_t piled = marked_cost(&t, &mark, &clock);
    int64_t all = claim_cost(&t, &mark, MR_SCAN_ALL, NULL, 0);
    print_message("  with 1,000,000 finished rows %ld (from the beginning %ld)\n", (long)piled,
                  (long)all);
    assert_true(piled <= 2 * fresh);
    assert_true(all <= 2 * fresh);
    mr__mark_free(&mark);
    queue_end(&t);
}

static void table_costs(void **state)
{
    costs(state, false);
}

static void view_costs(void **state)
{
    costs(state, true);
}

/* Statistics that know nothing, or something that was true long ago, must not lead to a plan that
 * reads the table. */
static void plans(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    make_table(&t);
    open_queue(&t, false);
    run(t.conn, "ANALYZE work");
    run(t.conn, "INSERT INTO work (state) SELECT CASE WHEN n % 4 = 0 THEN 'queued'"
                " ELSE 'completed' END FROM generate_series(1, 40000) AS n");
    static char plan[65536];
    for (int round = 0; round < 2; round++) {
        mr_clock clock = mr__clock_manual(0);
        mr_mark mark;
        mr__queue_mark_init(t.store, SECONDS(1), &mark);
        (void)claim_cost(&t, &mark, MR_SCAN_ALL, plan, sizeof(plan));
        assert_null(strstr(plan, "Seq Scan"));
        assert_null(strstr(plan, "\"Sort Key\": [\"work"));
        mr__jobs_unref(claim_marked(&t, &mark, &clock, BATCH));
        (void)claim_cost(&t, &mark, MR_SCAN_MARK, plan, sizeof(plan));
        assert_null(strstr(plan, "Seq Scan"));
        assert_non_null(strstr(plan, "\"Index Cond\": \"(ROW(created_at, id) >= "));
        mr__mark_free(&mark);
        run(t.conn, "ANALYZE work");
    }
    queue_end(&t);
}

/* The plan that a prepared statement settles on when it no longer looks at the values. */
static void generic_plans(void **state)
{
    static const char *const arguments[MR_QUEUE_STATEMENT_COUNT] = {
        [MR_QUEUE_CLAIM_ALL] = "(10, 'me', NULL, NULL)",
        [MR_QUEUE_CLAIM_MARK] = "(10, 'me', now(), 5)",
        [MR_QUEUE_FINISH] = "('{1,2}', '{1,1}', 'me', '{complete,complete}', NULL, NULL, NULL)",
        [MR_QUEUE_FINISH_FREE] = "('{1,2}', '{1,1}', 'me', '{complete,fail}', NULL, NULL, NULL)",
        [MR_QUEUE_HEARTBEAT] = "('{1,2}', '{1,1}', 'me')",
        [MR_QUEUE_RESET] = "",
        [MR_QUEUE_LOG_ADD] = "(1, 1, 'me', '{}')",
    };
    queue_test t;
    queue_begin(state, &t);
    make_table(&t);
    run(t.conn, "INSERT INTO work (state) SELECT CASE WHEN n % 40 = 0 THEN 'queued'"
                " ELSE 'completed' END FROM generate_series(1, 40000) AS n; ANALYZE work;"
                "SET plan_cache_mode = force_generic_plan");
    for (int view = 0; view < 2; view++) {
        open_queue(&t, view == 1);
        for (int i = 0; i < MR_QUEUE_STATEMENT_COUNT; i++) {
            if (arguments[i] == NULL)
                continue;
            PGresult *told =
                PQprepare(t.conn, "p", mr__queue_text(t.store, (mr_queue_statement)i), 0, NULL);
            assert_int_equal(PQresultStatus(told), PGRES_COMMAND_OK);
            PQclear(told);
            MR_AUTO_BUF sql = {0};
            mr__buf_printf(&sql, "EXPLAIN (FORMAT JSON) EXECUTE p%s", arguments[i]);
            const char *plan = value(t.conn, mr__buf_text(&sql));
            if (strstr(plan, "Seq Scan") != NULL)
                fail_msg("statement %d reads the whole table: %s", i, plan);
            run(t.conn, "DEALLOCATE p");
        }
    }
    run(t.conn, "RESET plan_cache_mode");
    queue_end(&t);
}

/* What lies below the mark is found again: at once when this process put it there, else at the next
 * look. */
static void below_the_mark(void **state)
{
    queue_test t;
    queue_begin(state, &t);
    make_table(&t);
    open_queue(&t, false);
    run(t.conn, "INSERT INTO work (process_after) SELECT CASE WHEN n = 2"
                " THEN now() + '1 hour'::interval END FROM generate_series(1, 8) AS n");
    mr_clock clock = mr__clock_manual(0);
    mr_mark mark;
    mr__queue_mark_init(t.store, SECONDS(1), &mark);
    mr_jobs *first = claim_marked(&t, &mark, &clock, 4); /* 1, 3, 4, 5 */
    assert_string_equal(mr__jobs_at(first, 3).id, "5");
    /* Due now, but by nobody's doing here: seen within the interval. */
    run(t.conn, "UPDATE work SET process_after = NULL WHERE id = 2");
    mr_jobs *next = claim_marked(&t, &mark, &clock, 1);
    assert_string_equal(mr__jobs_at(next, 0).id, "6");
    mr__jobs_unref(next);
    clock.manual += SECONDS(1);
    next = claim_marked(&t, &mark, &clock, 1);
    assert_string_equal(mr__jobs_at(next, 0).id, "2");
    mr__jobs_unref(next);
    /* It asked for one and got one: there may be more below, so it goes on from there. */
    next = claim_marked(&t, &mark, &clock, 1);
    assert_string_equal(mr__jobs_at(next, 0).id, "7");
    mr__jobs_unref(next);
    mr_job_row job = mr__jobs_at(first, 0);
    mr_outcome back = {.id = job.id, .fence = job.fence, .kind = MR_OUTCOME_RELEASE};
    assert_ok(mr__queue_finish(on_conn(t.conn), t.store, "me", &back, 1, &mark, NULL));
    next = claim_marked(&t, &mark, &clock, 5);
    assert_int_equal(mr__jobs_count(next), 2);
    assert_string_equal(mr__jobs_at(next, 0).id, "1");
    assert_string_equal(mr__jobs_at(next, 1).id, "8");
    mr__jobs_unref(next);
    mr__jobs_unref(first);
    mr__mark_free(&mark);
    queue_end(&t);
}

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(below_the_mark), cmocka_unit_test(plans),
        cmocka_unit_test(generic_plans),  cmocka_unit_test(table_costs),
        cmocka_unit_test(view_costs),
    };
    return cmocka_run_group_tests_name("queue cost", tests, scratch_setup, scratch_teardown);
}
