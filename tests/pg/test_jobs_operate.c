/* What people do to jobs of the built-in table: retry, cancel, requeue, drop, pause; and that keys
 * stay in order whatever is done to them. */
#include "scratch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mr_conf *conf;

static int begin(void **state)
{
    if (scratch_setup(state) != 0)
        return -1;
    const scratch *s = *state;
    conf = mr_conf_new();
    mr_error *error = mr_schema_apply(s->conn, conf, NULL);
    if (error != NULL)
        fail_msg("%s", mr_error_message(error));
    run(s->conn, "SET search_path = millrace, public");
    return 0;
}

static int end(void **state)
{
    mr_conf_free(conf);
    return scratch_teardown(state);
}

#define CONN(state) (((const scratch *)*(state))->conn)

/* ---- Words ----------------------------------------------------------------------------------- */

static char *sql(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *sql(const char *format, ...)
{
    static char text[4096];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return text;
}

static int64_t enqueue(PGconn *conn, const char *key)
{
    return number(conn, key == NULL ? "SELECT id FROM enqueue('q')"
                                    : sql("SELECT id FROM enqueue('q', key => '%s')", key));
}

/* Claims one and tells its id, 0 for none. */
static int64_t claim(PGconn *conn)
{
    return number(conn,
                  "SELECT coalesce((SELECT job::bigint FROM claim_jobs(queue => 'q', most => 1,"
                  " worker => 'w', marks => NULL, whole => true, floor => NULL, owned => NULL,"
                  " span => 100, patience => '1 s', most_running => NULL)), 0)");
}

static const char *finish(PGconn *conn, int64_t id, int64_t fence, const char *kind, bool hold)
{
    const char *became =
        value(conn, sql("SELECT coalesce((SELECT state FROM finish_jobs('q', ARRAY[%" PRId64
                        "]::bigint[], ARRAY[%" PRId64 "]::bigint[], ARRAY['%s'], ARRAY['it broke'],"
                        " ARRAY[NULL]::timestamptz[], ARRAY[0]::bigint[], false, 2, '0 s', '0 s',"
                        " %s, true)), '')",
                        id, fence, kind, hold ? "true" : "false"));
    static char kept[32];
    (void)snprintf(kept, sizeof(kept), "%s", became);
    run(conn,
        "SELECT promote_keys('q', ARRAY(SELECT DISTINCT partition_key FROM jobs WHERE ordered))");
    return kept;
}

static int64_t fence_of(PGconn *conn, int64_t id)
{
    return number(conn, sql("SELECT lease_generation FROM jobs WHERE id = %" PRId64, id));
}

/* Claims the next one, which must be this one, and makes it fail for good. */
static void fail_next(PGconn *conn, int64_t id, bool hold)
{
    assert_int_equal(claim(conn), id);
    assert_string_equal(finish(conn, id, fence_of(conn, id), "fail", hold), "failed");
}

static const char *standing(PGconn *conn, int64_t id)
{
    return value(
        conn,
        sql("SELECT state || coalesce(' ' || standing, '') FROM jobs WHERE id = %" PRId64, id));
}

static const char *archived(PGconn *conn, int64_t id)
{
    return value(conn, sql("SELECT state || coalesce(': ' || failure_message, '') FROM jobs_archive"
                           " WHERE id = %" PRId64,
                           id));
}

/* "done", or why not. */
static const char *act(PGconn *conn, const char *action, int64_t id)
{
    return value(conn,
                 sql("SELECT CASE WHEN done THEN 'done' ELSE '' END"
                     " || coalesce(': ' || note, '') FROM %s_jobs('q', '{\"ids\": [%" PRId64 "]}',"
                     " 'ann', 'so there')",
                     action, id));
}

/* ---- Each rule ------------------------------------------------------------------------------- */

static void test_replayed_letter_comes_behind_its_key(void **state)
{
    PGconn *conn = CONN(state);
    int64_t first = enqueue(conn, "k"), second = enqueue(conn, "k"), third = enqueue(conn, "k");
    fail_next(conn, first, false);
    int64_t fence = fence_of(conn, first);
    assert_string_equal(standing(conn, first), "failed");
    assert_string_equal(standing(conn, second), "queued ready");
    assert_string_equal(act(conn, "retry", first), "done");
    assert_string_equal(standing(conn, first), "queued blocked");
    assert_int_equal(number(conn, "SELECT num_failures FROM jobs ORDER BY id LIMIT 1"), 0);
    assert_int_equal(
        number(conn, "SELECT jsonb_array_length(errors) FROM jobs ORDER BY id LIMIT 1"), 1);
    assert_int_equal(fence_of(conn, first), fence); /* what ran it before has no claim on it */
    const int64_t order[] = {second, third, first};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(claim(conn), order[i]);
        assert_int_equal(claim(conn), 0);
        assert_string_equal(finish(conn, order[i], fence_of(conn, order[i]), "complete", false),
                            "completed");
    }
    assert_string_equal(value(conn, "SELECT action || ' ' || actor || ' ' || reason || ' ' || "
                                    "(detail->>'ids') FROM queue_audit"),
                        "retry ann so there [1]");
}

static void test_held_letter_goes_on_or_lets_go(void **state)
{
    PGconn *conn = CONN(state);
    int64_t first = enqueue(conn, "k"), second = enqueue(conn, "k"), third = enqueue(conn, "k");
    fail_next(conn, first, true);
    assert_string_equal(standing(conn, first), "failed held");
    assert_int_equal(claim(conn), 0);
    assert_string_equal(act(conn, "retry", first), "done");
    assert_string_equal(standing(conn, first), "queued ready");
    fail_next(conn, first, true);
    assert_string_equal(act(conn, "drop", first), "done");
    assert_string_equal(archived(conn, first), "failed: it broke");
    fail_next(conn, second, true);
    assert_string_equal(act(conn, "cancel", second), "done");
    assert_string_equal(archived(conn, second), "canceled: so there");
    assert_int_equal(claim(conn), third);
}

static void test_unordered_letter_is_ready(void **state)
{
    PGconn *conn = CONN(state);
    int64_t id = enqueue(conn, NULL);
    fail_next(conn, id, false);
    assert_string_equal(act(conn, "cancel", id),
                        ": it has failed; drop removes it from the dead letters");
    assert_string_equal(act(conn, "retry", id), "done");
    assert_string_equal(standing(conn, id), "queued ready");
    assert_string_equal(act(conn, "retry", id), ": it is in line already");
    assert_int_equal(claim(conn), id);
    assert_string_equal(act(conn, "retry", id),
                        ": it is running; wait for its end, or cancel it first");
    assert_string_equal(act(conn, "drop", id),
                        ": it is running; wait for its end, or cancel it first");
    assert_string_equal(finish(conn, id, fence_of(conn, id), "complete", false), "completed");
    assert_string_equal(act(conn, "retry", id),
                        ": it has ended: completed; requeue runs it once more");
    assert_string_equal(act(conn, "retry", 4711), ": the queue has no such job");
}

static void test_cancel_frees_what_waits(void **state)
{
    PGconn *conn = CONN(state);
    int64_t ids[4];
    for (int i = 0; i < 4; i++)
        ids[i] = enqueue(conn, "k");
    assert_string_equal(act(conn, "cancel", ids[1]), "done"); /* blocked */
    assert_string_equal(act(conn, "cancel", ids[0]), "done"); /* ready */
    assert_string_equal(standing(conn, ids[2]), "queued ready");
    assert_int_equal(claim(conn), ids[2]);
    assert_string_equal(act(conn, "cancel", ids[2]),
                        "done: its worker is told with its next heartbeat");
    assert_string_equal(act(conn, "cancel", ids[2]), ": its worker was asked already");
    assert_string_equal(finish(conn, ids[2], fence_of(conn, ids[2]), "error", false), "canceled");
    assert_int_equal(claim(conn), ids[3]);
    assert_string_equal(finish(conn, ids[3], fence_of(conn, ids[3]), "error", false), "errored");
    assert_string_equal(act(conn, "cancel", ids[3]), "done");
    assert_int_equal(number(conn, "SELECT count(*) FROM jobs"), 0);
    run(conn, "SELECT enqueue('q', run_at => now() + interval '1 day')");
    assert_int_equal(
        number(conn, "SELECT count(*) FROM cancel_jobs('q', '{\"state\": \"queued\"}') WHERE done"),
        1);
}

static void test_requeue(void **state)
{
    PGconn *conn = CONN(state);
    int64_t first = enqueue(conn, "k"), second = enqueue(conn, "k");
    assert_string_equal(act(conn, "requeue", first), "done");
    assert_string_equal(standing(conn, first), "queued blocked");
    assert_int_equal(claim(conn), second);
    /* No worker of that name lives, so its lease is nobody's. */
    run(conn, "INSERT INTO worker_nodes (worker_id, host, pid, version)"
              " VALUES ('11111111-1111-1111-1111-111111111111', 'h', 1, 'v')");
    run(conn, "UPDATE jobs SET worker_hostname = 'h:11111111-1111-1111-1111-111111111111'");
    assert_string_equal(act(conn, "requeue", second),
                        ": it is running; wait for its end, or cancel it first");
    run(conn,
        "UPDATE jobs SET last_heartbeat_at = now() - interval '1 hour' WHERE state = 'processing'");
    int64_t fence = fence_of(conn, second);
    assert_string_equal(act(conn, "requeue", second), "done");
    assert_string_equal(finish(conn, second, fence, "complete", false), "");
    assert_int_equal(claim(conn), first);
    assert_string_equal(finish(conn, first, fence_of(conn, first), "complete", false), "completed");
    assert_string_equal(
        value(conn, sql("SELECT regexp_replace(note, '[0-9]+', 'N') FROM requeue_jobs('q',"
                        " '{\"ids\": [%" PRId64 "]}') WHERE done AND was = 'completed'",
                        first)),
        "it is in the archive; queued once more as job N");
    int64_t twin = number(conn, "SELECT max(id) FROM jobs");
    assert_string_equal(standing(conn, twin), "queued blocked"); /* behind the second */
    run(conn, sql("SELECT * FROM requeue_jobs('q', '{\"ids\": [%" PRId64 "]}',"
                  " due => now() + interval '1 h')",
                  twin));
    assert_string_equal(standing(conn, twin), "queued later");
    assert_string_equal(standing(conn, second), "queued ready");
    assert_non_null(strstr(act(conn, "retry", twin), "it is queued already, due 20"));
}

static void test_what_others_hold_is_told(void **state)
{
    PGconn *conn = CONN(state);
    PGconn *other = scratch_connect(*state);
    run(other, "SET search_path = millrace");
    int64_t plain = enqueue(conn, NULL), keyed = enqueue(conn, "k");
    run(other, "BEGIN");
    run(other, sql("SELECT FROM jobs WHERE id = %" PRId64 " FOR UPDATE", plain));
    run(other, "SELECT enqueue('q', key => 'k')");
    assert_string_equal(act(conn, "cancel", plain),
                        ": another session has its row locked, or has just ended it; try again");
    assert_string_equal(
        act(conn, "cancel", keyed),
        ": jobs of its key are just being enqueued, by a transaction that is open; try again");
    run(other, "COMMIT");
    assert_string_equal(act(conn, "cancel", keyed), "done");
    assert_string_equal(act(conn, "cancel", plain), "done");
    assert_int_equal(number(conn, "SELECT count(*) FROM jobs WHERE standing = 'ready'"), 1);
    PQfinish(other);
}

static const char *refusal(PGconn *conn, const char *statement)
{
    static char text[200];
    PGresult *result = PQexec(conn, statement);
    (void)snprintf(text, sizeof(text), "%s %s", PQresultErrorField(result, PG_DIAG_SQLSTATE),
                   PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY));
    PQclear(result);
    return text;
}

static void test_filters(void **state)
{
    PGconn *conn = CONN(state);
    for (int i = 0; i < 3; i++)
        fail_next(conn, enqueue(conn, i == 0 ? "k" : NULL), false);
    assert_string_equal(refusal(conn, "SELECT drop_jobs('q', '{}')"),
                        "MR020 say which jobs of queue q to drop, or that all of them are meant");
    assert_string_equal(refusal(conn, "SELECT drop_jobs('q', '{\"limit\": 2}')"),
                        "MR020 say which jobs of queue q to drop, or that all of them are meant");
    assert_string_equal(refusal(conn, "SELECT drop_jobs('q', '{\"stat\": \"failed\"}')"),
                        "MR020 a filter of jobs has no \"stat\"");
    assert_string_equal(refusal(conn, "SELECT drop_jobs('q', '{\"state\": \"lost\"}')"),
                        "MR020 a job has no state \"lost\"");
#define DROPS(filter) number(conn, "SELECT count(*) FROM drop_jobs('q', '" filter "') WHERE done")
    assert_int_equal(DROPS("{\"error\": \"nothing\"}"), 0);
    assert_int_equal(DROPS("{\"after\": \"2100-01-01\"}"), 0);
    assert_int_equal(DROPS("{\"key\": \"k\", \"error\": \"BROKE\", \"after\": \"2020-01-01\"}"), 1);
    assert_int_equal(DROPS("{\"all\": true, \"limit\": 1}"), 1);
    assert_int_equal(DROPS("{\"all\": true}"), 1);
    assert_int_equal(number(conn, "SELECT count(*) FROM queue_audit WHERE action = 'drop'"), 3);
}

static void test_pause(void **state)
{
    PGconn *conn = CONN(state);
    assert_string_equal(refusal(conn, "SELECT pause_queue('q', 'ann', 'why')"),
                        "MR007 there is no queue q");
    int64_t id = enqueue(conn, NULL);
    run(conn, "SELECT pause_queue('q', 'ann', 'deploy')");
    assert_int_equal(claim(conn), 0);
    assert_string_equal(
        value(conn, "SELECT detail->>'already' FROM pause_queue('q', 'bob', 'too')"), "true");
    assert_string_equal(value(conn, "SELECT paused_by || pause_reason FROM queue_controls"),
                        "anndeploy");
    assert_string_equal(
        value(conn, "SELECT detail->'was'->>'reason' FROM resume_queue('q', 'ann')"), "deploy");
    assert_int_equal(claim(conn), id);
    assert_string_equal(value(conn, "SELECT string_agg(action, ' ' ORDER BY id) FROM queue_audit"),
                        "pause pause resume");
}

static void test_figures(void **state)
{
    PGconn *conn = CONN(state);
    fail_next(conn, enqueue(conn, NULL), false);
    int64_t errored = enqueue(conn, NULL);
    assert_int_equal(claim(conn), errored);
    assert_string_equal(finish(conn, errored, fence_of(conn, errored), "error", false), "errored");
    run(conn, "UPDATE jobs SET run_at = now() + interval '1 h' WHERE standing = 'waiting'");
    for (int i = 0; i < 5; i++)
        enqueue(conn, "k");
    run(conn, "SELECT enqueue('q', run_at => now() + interval '1 day')");
    run(conn, "UPDATE jobs SET queued_at = now() - interval '100 s'");
    assert_int_not_equal(claim(conn), 0);
    assert_string_equal(
        value(conn,
              "SELECT concat_ws(' ', queued, errored, processing, failed, stalled, ready, blocked,"
              " later, waiting, held, oldest_wait_seconds, rough) FROM queue_figures('q')"),
        "5 1 1 1 1 0 4 1 1 0 0.0 {}");
    assert_string_equal(
        value(conn, "SELECT blocked || ' ' || (rough->>'blocked') FROM queue_figures('q', 2)"),
        "3 at least");
    assert_string_equal(value(conn, "SELECT string_agg(k, ' ') FROM known_queues() AS k"), "q");
}

static void test_progress_is_fenced(void **state)
{
    PGconn *conn = CONN(state);
    int64_t id = enqueue(conn, NULL);
    assert_int_equal(claim(conn), id);
    int64_t fence = fence_of(conn, id);
#define PROGRESS(f, p, t)                                                                          \
    number(conn, sql("SELECT set_progress(ARRAY[%" PRId64 "], ARRAY[%" PRId64                      \
                     "]::bigint[], ARRAY[" p "]::int[], ARRAY[" t "])",                            \
                     id, (int64_t)(f)))
    assert_int_equal(PROGRESS(fence, "40", "'half'"), 1);
    assert_int_equal(PROGRESS(fence - 1, "99", "'zombie'"), 0);
    assert_int_equal(PROGRESS(fence, "120", "NULL"), 1);
    assert_string_equal(value(conn, "SELECT progress || progress_text FROM jobs"), "100half");
}

/* ---- Whatever is done ------------------------------------------------------------------------ */

enum { KEYS = 4, STEPS = 700, RUNNING = 8 };

typedef struct storm {
    PGconn *conn, *producer;
    bool producing;
    unsigned seed;
    struct {
        int64_t id, fence;
    } claimed[RUNNING]; /* some are stale: their fence has moved on */
} storm;

static unsigned dice(storm *s, unsigned sides)
{
    s->seed = s->seed * 1664525U + 1013904223U;
    return (s->seed >> 8) % sides;
}

static void produce(storm *s)
{
    if (s->producing) {
        run(s->producer, dice(s, 4) == 0 ? "ROLLBACK" : "COMMIT");
        s->producing = false;
        return;
    }
    if (dice(s, 3) == 0) {
        run(s->producer, "BEGIN");
        s->producing = true;
    }
    char key[16];
    (void)snprintf(key, sizeof(key), "k%u", dice(s, KEYS));
    (void)enqueue(s->producer, dice(s, 5) == 0 ? NULL : key);
}

static void work(storm *s)
{
    unsigned slot = dice(s, RUNNING);
    if (s->claimed[slot].id == 0) {
        s->claimed[slot].id = claim(s->conn);
        s->claimed[slot].fence =
            s->claimed[slot].id == 0 ? 0 : fence_of(s->conn, s->claimed[slot].id);
        return;
    }
    static const char *const kinds[] = {"complete", "error",   "fail",
                                        "snooze",   "requeue", "release"};
    (void)finish(s->conn, s->claimed[slot].id, s->claimed[slot].fence, kinds[dice(s, 6)],
                 dice(s, 2) == 0);
    if (dice(s, 4) != 0) /* sometimes it is finished once more */
        s->claimed[slot].id = 0;
}

static void meddle(storm *s)
{
    static const char *const actions[] = {"retry", "retry", "drop", "cancel", "requeue"};
    static const char *const filters[] = {
        "{\"all\": true, \"limit\": 2}", "{\"state\": \"failed\"}",
        "{\"state\": [\"queued\", \"failed\"], \"limit\": 1}", "{\"key\": \"k1\", \"limit\": 3}"};
    /* What is nobody's any more: there is no worker of that name. */
    run(s->conn,
        sql("SELECT * FROM %s_jobs('q', '%s', 'ann')", actions[dice(s, 5)], filters[dice(s, 4)]));
}

static void check(storm *s)
{
    assert_string_equal(value(s->conn,
                              "SELECT coalesce(string_agg(partition_key, ','), '') FROM (SELECT "
                              "partition_key FROM jobs"
                              " WHERE ordered AND standing IN ('ready', 'waiting', 'held')"
                              " GROUP BY 1 HAVING count(*) > 1) AS two"),
                        "");
}

/* Every job there is runs to its end, without anybody's help but the sweep's. */
static void drain(storm *s)
{
    if (s->producing)
        run(s->producer, "COMMIT");
    s->producing = false;
    run(s->conn, "UPDATE jobs SET state = 'queued' WHERE state = 'processing'");
    run(s->conn, "SELECT sweep_keys(NULL, 1000)");
    for (int64_t id; (id = claim(s->conn)) != 0;) {
        check(s);
        const char *became = finish(s->conn, id, fence_of(s->conn, id), "complete", false);
        assert_true(strcmp(became, "completed") == 0);
    }
    assert_string_equal(
        value(
            s->conn,
            "SELECT coalesce(string_agg(id || ' ' || state || ' ' || coalesce(standing, ''), ','),"
            " '') FROM jobs WHERE state <> 'failed' AND NOT EXISTS (SELECT FROM jobs AS h"
            " WHERE h.standing = 'held' AND h.partition_key = jobs.partition_key)"),
        "");
}

static void storm_of(void **state, unsigned seed)
{
    storm s = {.conn = CONN(state), .producer = scratch_connect(*state), .seed = seed};
    run(s.producer, "SET search_path = millrace");
    for (int i = 0; i < STEPS; i++) {
        unsigned what = dice(&s, 10);
        if (what < 3)
            produce(&s);
        else if (what < 8)
            work(&s);
        else
            meddle(&s);
        check(&s);
    }
    drain(&s);
    run(s.conn, "SELECT * FROM retry_jobs('q', '{\"all\": true}')");
    drain(&s);
    assert_int_equal(number(s.conn, "SELECT count(*) FROM jobs"), 0);
    /* Each is in the archive once. */
    assert_int_equal(number(s.conn, "SELECT count(*) FROM (SELECT id FROM jobs_archive GROUP BY 1 "
                                    "HAVING count(*) > 1) AS d"),
                     0);
    assert_true(number(s.conn, "SELECT count(*) FROM jobs_archive WHERE state = 'completed'") > 50);
    PQfinish(s.producer);
}

static void test_keys_stay_in_order_1(void **state)
{
    storm_of(state, 1);
}

static void test_keys_stay_in_order_2(void **state)
{
    storm_of(state, 20260118);
}

int main(void)
{
    scratch_require_server();
#define EACH(test) cmocka_unit_test_setup_teardown(test, begin, end)
    const struct CMUnitTest tests[] = {EACH(test_replayed_letter_comes_behind_its_key),
                                       EACH(test_held_letter_goes_on_or_lets_go),
                                       EACH(test_unordered_letter_is_ready),
                                       EACH(test_cancel_frees_what_waits),
                                       EACH(test_requeue),
                                       EACH(test_what_others_hold_is_told),
                                       EACH(test_filters),
                                       EACH(test_pause),
                                       EACH(test_figures),
                                       EACH(test_progress_is_fenced),
                                       EACH(test_keys_stay_in_order_1),
                                       EACH(test_keys_stay_in_order_2)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
