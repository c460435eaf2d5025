/* What a claim of the built-in table costs, counted in the server's buffers: it must not grow with
 * the backlog, with a key that has everything, with jobs that are others', nor while a long
 * transaction keeps vacuum from removing what was claimed. */
#include "scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BULK = 500, HELD = 20000 };

static int begin(void **state)
{
    if (scratch_setup(state) != 0)
        return -1;
    const scratch *s = *state;
    mr_conf *conf = mr_conf_new();
    mr_error *error = mr_schema_apply(s->conn, conf, NULL);
    mr_conf_free(conf);
    if (error != NULL)
        fail_msg("%s", mr_error_message(error));
    run(s->conn, "SET search_path = millrace, public");
    return 0;
}

#define CONN(state) (((const scratch *)*(state))->conn)

/* `count` jobs by plain INSERT: the producers' side is not what is measured. */
static void fill(PGconn *conn, int count, const char *standing, const char *key, const char *bucket)
{
    char sql[1024];
    (void)snprintf(sql, sizeof(sql),
                   "INSERT INTO jobs (id, turn, queue, standing, partition_key, partition_bucket,"
                   " ordered) SELECT n, n, 'q', '%s', %s, %s, %s IS NOT NULL FROM (SELECT"
                   " nextval('jobs_turns') AS n FROM generate_series(1, %d)) AS g",
                   standing, key, bucket, key, count);
    run(conn, sql);
}

static const char claim_form[] =
    "claim_jobs(queue => 'q', most => %d, worker => 'w', marks => %s, whole => false, floor => "
    "NULL,"
    " owned => %s, span => 1000, patience => '1 hour', most_running => NULL)";

/* Buffers that a claim of ten touches, with its plans ready. */
static int64_t cost(PGconn *conn, const char *marks, const char *owned)
{
    char call[1024], sql[1200];
    (void)snprintf(call, sizeof(call), claim_form, 10, marks, owned);
    (void)snprintf(sql, sizeof(sql), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM %s",
                   call);
    int64_t last = 0;
    run(conn, "BEGIN");
    for (int i = 0; i < 8; i++) { /* the first ones look things up that stay known */
        const char *plan = value(conn, sql);
        const char *hit = strstr(plan, "\"Shared Hit Blocks\": ");
        const char *read = strstr(plan, "\"Shared Read Blocks\": ");
        assert_non_null(hit);
        assert_non_null(read);
        last = strtoll(strchr(hit, ':') + 1, NULL, 10) + strtoll(strchr(read, ':') + 1, NULL, 10);
    }
    run(conn, "ROLLBACK");
    return last;
}

static void analyzed(PGconn *conn)
{
    run(conn, "VACUUM ANALYZE jobs");
}

static void a_deep_backlog(void **state)
{
    PGconn *conn = CONN(state);
    fill(conn, 1000, "ready", "NULL", "NULL");
    analyzed(conn);
    int64_t fresh = cost(conn, "NULL", "NULL");
    fill(conn, 200000, "ready", "NULL", "NULL");
    analyzed(conn);
    int64_t deep = cost(conn, "NULL", "NULL");
    print_message("a claim touches %ld buffers of a short line, %ld of a long one\n", (long)fresh,
                  (long)deep);
    assert_true(deep <= 2 * fresh);
}

/* Only one job of a key is in line, however many stand behind it. */
static void a_hot_key(void **state)
{
    PGconn *conn = CONN(state);
    fill(conn, 1000, "ready", "NULL", "NULL");
    analyzed(conn);
    int64_t fresh = cost(conn, "NULL", "NULL");
    fill(conn, 1, "ready", "'hot'", "7");
    fill(conn, 100000, "blocked", "'hot'", "7");
    analyzed(conn);
    int64_t hot = cost(conn, "NULL", "NULL");
    print_message("a claim touches %ld buffers, %ld beside a key of 100,000 jobs\n", (long)fresh,
                  (long)hot);
    assert_true(hot <= 2 * fresh);
    /* Nor does the next of that key cost more than of another. */
    run(conn, "DELETE FROM jobs WHERE partition_key = 'hot' AND standing = 'ready'");
    char plan[65536];
    (void)snprintf(plan, sizeof(plan), "%s",
                   value(conn, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)"
                               " SELECT promote_keys('q', ARRAY['hot'])"));
    int64_t buffers = strtoll(strstr(plan, "\"Shared Hit Blocks\": ") + 21, NULL, 10);
    assert_in_range(buffers, 1, 500);
    assert_int_equal(number(conn, "SELECT count(*) FROM jobs WHERE partition_key = 'hot'"
                                  " AND standing = 'ready'"),
                     1);
}

/* Everything in line is another worker's: no more of it is looked at than `span`. */
static void jobs_of_others(void **state)
{
    PGconn *conn = CONN(state);
    fill(conn, 2000, "ready", "'k' || n", "5");
    fill(conn, 20, "ready", "'own' || n", "7");
    analyzed(conn);
    int64_t few = cost(conn, "NULL", "'{7}'");
    fill(conn, 200000, "ready", "'k' || n", "5");
    analyzed(conn);
    int64_t many = cost(conn, "NULL", "'{7}'");
    print_message("a claim touches %ld buffers with 2,000 jobs of others, %ld with 200,000\n",
                  (long)few, (long)many);
    assert_true(many <= 2 * few);
}

/* Claims and completes in bulk, as a worker does, from mark to mark. */
static void consume(PGconn *conn, int total, char *marks, size_t size)
{
    char call[1024], sql[2048];
    for (int done = 0; done < total; done += BULK) {
        (void)snprintf(call, sizeof(call), claim_form, BULK, marks, "NULL");
        (void)snprintf(sql, sizeof(sql),
                       "CREATE TEMP TABLE got AS SELECT id, fence, next_marks FROM %s", call);
        run(conn, sql);
        assert_int_equal(number(conn, "SELECT count(*) FROM got"), BULK);
        (void)snprintf(marks, size, "'%s'::bigint[]",
                       value(conn, "SELECT max(next_marks) FROM got"));
        assert_int_equal(number(conn,
                                "SELECT n FROM finish_jobs('q', (SELECT array_agg(id) FROM got),"
                                " (SELECT array_agg(fence) FROM got), NULL, NULL, NULL, NULL,"
                                " false, 5, '1s', '1s', false, true)"),
                         0);
        run(conn, "DROP TABLE got");
    }
}

static void a_held_snapshot(void **state)
{
    PGconn *conn = CONN(state);
    fill(conn, 2 * HELD, "ready", "NULL", "NULL");
    analyzed(conn);
    char marks[512] = "NULL";
    consume(conn, BULK, marks, sizeof(marks));
    int64_t fresh = cost(conn, marks, "NULL");
    PGconn *other = scratch_connect(*state);
    run(other, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    (void)value(other, "SELECT 1");
    consume(conn, HELD, marks, sizeof(marks));
    int64_t held = cost(conn, marks, "NULL");
    print_message("a claim touches %ld buffers, %ld after %d jobs under a held snapshot\n",
                  (long)fresh, (long)held, HELD);
    assert_true(held <= 2 * fresh);
    run(other, "COMMIT");
    PQfinish(other);
}

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_deep_backlog, begin, scratch_teardown),
        cmocka_unit_test_setup_teardown(a_hot_key, begin, scratch_teardown),
        cmocka_unit_test_setup_teardown(jobs_of_others, begin, scratch_teardown),
        cmocka_unit_test_setup_teardown(a_held_snapshot, begin, scratch_teardown),
    };
    return cmocka_run_group_tests_name("jobs cost", tests, NULL, NULL);
}
