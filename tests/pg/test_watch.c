/* The health report and the listings of consumers: slots, locks, pauses, dead letters. */
#include "watch_fixture.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* ---- Health -------------------------------------------------------------------------------- */

static char report[4096];

/* "status consumer:reason …", `-` for no consumer. */
static const char *health(PGconn *conn)
{
    char *text = NULL;
    assert_ok(mr_health(conn, conf, &text));
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    size_t used = (size_t)snprintf(report, sizeof(report), "%s",
                                   json_string_value(json_object_get(json, "status")));
    size_t i;
    json_t *reason;
    json_array_foreach(json_object_get(json, "reasons"), i, reason)
    {
        const char *consumer = json_string_value(json_object_get(reason, "consumer"));
        assert_true(json_string_length(json_object_get(reason, "detail")) > 0);
        used += (size_t)snprintf(report + used, sizeof(report) - used, " %s:%s",
                                 consumer == NULL ? "-" : consumer,
                                 json_string_value(json_object_get(reason, "reason")));
    }
    json_decref(json);
    mr_free(text);
    return report;
}

static void health_has_the_figures(void **state)
{
    PGconn *conn = conn_of(state);
    assert_string_equal(health(conn), "healthy");
    add_events(conn, 5);
    add_worker(conn, A, "{a}", "{}");
    assign(conn, "a", A);
    move_to(conn, "a", 2);
    char *text = NULL;
    assert_ok(mr_health(conn, conf, &text));
    json_error_t where;
    json_t *json = json_loads(text, 0, &where), *wanted = NULL;
    wanted = json_loads("{\"status\": \"healthy\", \"reasons\": [], \"consumers\": [{\"name\": "
                        "\"a\", \"state\": \"running\", \"lag\": 3, \"checkpoint\": 2, \"head\": 5,"
                        " \"dead_letters\": 0}], \"head\": 5, \"workers_alive\": 1}",
                        0, &where);
    assert_non_null(wanted);
    assert_true(json_equal(json, wanted));
    json_decref(json);
    json_decref(wanted);
    mr_free(text);
}

static void each_reason(void **state)
{
    PGconn *conn = conn_of(state);
    assign(conn, "a", "NULL");
    assert_string_equal(health(conn), "degraded -:no_worker");
    run(conn, "INSERT INTO millrace.worker_nodes (worker_id, consumers) VALUES (" A ", '{a}')");
    run(conn, "UPDATE millrace.consumer_assignments SET worker_id = " A);
    assert_string_equal(health(conn), "degraded -:no_leader");
    run(conn, "DELETE FROM millrace.worker_nodes");
    add_worker(conn, A, "{a}", "{}");
    assert_string_equal(health(conn), "degraded a:no_owner");
    run(conn, "UPDATE millrace.consumer_assignments SET worker_id = " A);
    move_to(conn, "a", 0);
    assert_string_equal(health(conn), "healthy");
    add_events(conn, 10);
    assert_string_equal(health(conn), "healthy");
    assert_ok(mr_conf_set(conf, "lag_threshold", "10"));
    assert_string_equal(health(conn), "healthy"); /* above, not at */
    assert_ok(mr_conf_set(conf, "lag_threshold", "9"));
    assert_string_equal(health(conn), "degraded a:lag");
    assert_ok(mr_conf_set(conf, "lag_threshold", "off"));
    run(conn, "UPDATE millrace.worker_nodes SET info = '{\"consumers\": {\"a\": {\"failures\": "
              "1, \"error\": \"boom\"}}}'");
    assert_string_equal(health(conn), "degraded a:failing");
    pause_consumer(conn, "a", "failure", "worker 1", "'boom'");
    assert_string_equal(health(conn), "degraded a:paused");
    run(conn,
        "DELETE FROM millrace.consumer_controls; UPDATE millrace.worker_nodes SET info = '{}'");
    add_letter(conn, "a", 1, "poison");
    add_letter(conn, "gone", 1, "parked");
    assert_string_equal(health(conn), "degraded a:dead_letters gone:dead_letters");
    run(conn, "DELETE FROM millrace.consumer_dead_letters;"
              "DELETE FROM events WHERE global_position = 1;"
              "UPDATE events SET created_at = now() - interval '1 h';"
              "UPDATE millrace.consumer_checkpoints SET updated_at = now() - interval '1 h'");
    assert_string_equal(health(conn), "degraded a:blocked");
    run(conn, "UPDATE millrace.worker_nodes SET state = 'dead'");
    assert_string_equal(health(conn), "degraded -:no_worker a:no_owner");
}

/* ---- Listings ------------------------------------------------------------------------------ */

static PGresult *list(PGconn *conn, const char *what)
{
    PGresult *rows = NULL;
    assert_ok(mr_list(conn, conf, what, &rows));
    return rows;
}

static const char *cell(const PGresult *rows, int row, const char *column)
{
    int number_of = PQfnumber(rows, column);
    if (number_of < 0)
        fail_msg("no column %s", column);
    return PQgetvalue(rows, row, number_of);
}

/* Asserts one cell of the row of a consumer. */
static void assert_cell(PGconn *conn, const char *consumer, const char *column, const char *wanted)
{
    PGresult *rows = list(conn, "consumers");
    bool found = false;
    for (int row = 0; row < PQntuples(rows); row++) {
        if (strcmp(cell(rows, row, "consumer"), consumer) != 0)
            continue;
        found = true;
        if (strcmp(cell(rows, row, column), wanted) != 0)
            fail_msg("%s of %s is '%s', not '%s'", column, consumer, cell(rows, row, column),
                     wanted);
    }
    assert_true(found);
    PQclear(rows);
}

static void slots_in_order(void **state)
{
    PGconn *conn = conn_of(state);
    for (int i = 11; i >= 0; i--) {
        char name[32];
        (void)snprintf(name, sizeof(name), "p#%d/12", i);
        move_to(conn, name, i);
    }
    move_to(conn, "p2", 0);
    move_to(conn, "odd#1", 0);
    move_to(conn, "odd#99999999999999/99999999999999", 0); /* no slot: no number is that large */
    add_letter(conn, "p#3/12", 1, "poison");
    add_letter(conn, "p#3/12", 2, "parked");
    PGresult *rows = list(conn, "consumers");
    int first = 0;
    while (strcmp(cell(rows, first, "base"), "p") != 0)
        first++;
    for (int i = 0; i < 12; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "p#%d/12", i);
        assert_string_equal(cell(rows, first + i, "consumer"), name);
        assert_string_equal(cell(rows, first + i, "partitions"), "12");
        assert_string_equal(cell(rows, first + i, "dead_letters"), i == 3 ? "2" : "0");
    }
    PQclear(rows);
    assert_cell(conn, "p2", "partitions", "1");
    assert_cell(conn, "p2", "base", "p2");
    assert_cell(conn, "odd#1", "base", "odd#1");
    assert_cell(conn, "odd#99999999999999/99999999999999", "partitions", "1");
}

static void paused_consumers_say_why(void **state)
{
    PGconn *conn = conn_of(state);
    move_to(conn, "a", 1);
    pause_consumer(conn, "a", "command", "ann", "NULL");
    run(conn, "UPDATE millrace.consumer_controls SET last_error = 'boom', last_error_position = 2");
    assert_cell(conn, "a", "state", "paused");
    assert_cell(conn, "a", "paused_by", "ann");
    assert_cell(conn, "a", "last_error", "boom");
    assert_cell(conn, "a", "last_error_position", "2");
    run(conn, "UPDATE millrace.consumer_controls SET pause_reason = 'a deploy'");
    assert_cell(conn, "a", "last_error", "a deploy");
    assert_cell(conn, "a", "pause_reason", "a deploy");
    assert_cell(conn, "a", "pause_kind", "command");
    PGresult *rows = list(conn, "status");
    assert_non_null(strstr(cell(rows, 0, "problems"), "consumer a: paused by ann: a deploy"));
    PQclear(rows);
    /* What was, is no news. */
    run(conn, "UPDATE millrace.consumer_controls SET paused = false");
    assert_cell(conn, "a", "paused_by", "");
    assert_cell(conn, "a", "pause_reason", "");
    assert_cell(conn, "a", "last_error", "boom");
}

static void slots_share_a_problem(void **state)
{
    PGconn *conn = conn_of(state);
    add_worker(conn, A, "{}", "{}");
    move_to(conn, "p#0/3", 0);
    move_to(conn, "p#1/3", 0);
    move_to(conn, "p#2/3", 0);
    for (int i = 0; i < 3; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "p#%d/3", i);
        pause_consumer(conn, name, i == 2 ? "failure" : "command", "ann",
                       i == 2 ? "'boom'" : "NULL");
        add_letter(conn, name, i + 1, "poison");
    }
    add_events(conn, 5);
    assert_ok(mr_conf_set(conf, "lag_threshold", "4"));
    PGresult *rows = list(conn, "status");
    json_t *problems = json_loads(cell(rows, 0, "problems"), 0, NULL);
    assert_int_equal(json_array_size(problems), 4);
    json_decref(problems);
    static const char *const wanted[] = {
        "consumer p: paused: boom (1 of 3 slots)", "consumer p: paused by ann (2 of 3 slots)",
        "consumer p: lag 5 is above lag_threshold 4",
        "consumer p: 3 dead letters; see millrace dead-letters list"};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        assert_non_null(strstr(cell(rows, 0, "problems"), wanted[i]));
    PQclear(rows);
}

static void owners_by_lock(void **state)
{
    PGconn *conn = conn_of(state);
    add_events(conn, 3);
    move_to(conn, "mine", 3);
    assert_cell(conn, "mine", "ownership", "lock");
    assert_cell(conn, "mine", "state", "unassigned");
    add_worker(conn, A, "{x}", "{}");
    assert_cell(conn, "mine", "state", "no worker can run it");
    add_worker(conn, B, "{x}", "{\"locks\": [\"mine\"]}");
    assert_cell(conn, "mine", "state", "unassigned");
    run(conn, "UPDATE millrace.worker_nodes SET info = '{\"locks\": [\"mine\"], \"consumers\": "
              "{\"mine\": {\"state\": \"idle\", \"failures\": 0}}}' WHERE worker_id = " B);
    assert_cell(conn, "mine", "state", "idle");
    assert_cell(conn, "mine", "worker_id", "00000000-0000-7000-8000-00000000000b");
    assert_string_equal(health(conn), "healthy");
    add_events(conn, 1);
    assert_cell(conn, "mine", "state", "running");
    /* A row left from when it was assigned changes nothing. */
    assign(conn, "mine", "NULL");
    assert_cell(conn, "mine", "ownership", "lock");
    assert_cell(conn, "mine", "state", "running");
    run(conn, "DELETE FROM millrace.consumer_assignments");
    run(conn, "UPDATE millrace.worker_nodes SET info = jsonb_set(info, '{consumers,mine,failures}',"
              " '1') WHERE worker_id = " B);
    assert_cell(conn, "mine", "state", "failing");
    PGresult *rows = list(conn, "workers");
    assert_string_equal(cell(rows, 1, "owned"), "1");
    assert_string_equal(cell(rows, 1, "can_run"), "2");
    assert_string_equal(cell(rows, 0, "can_run"), "1");
    PQclear(rows);
    /* A silent one still holds its lock; one whose session ended does not. */
    run(conn, "UPDATE millrace.worker_nodes SET heartbeat_at = now() - interval '1 h'"
              " WHERE worker_id = " B);
    assert_cell(conn, "mine", "state", "owner silent");
    run(conn, "UPDATE millrace.worker_nodes SET heartbeat_at = now(), session_lock = 4711"
              " WHERE worker_id = " B);
    assert_cell(conn, "mine", "worker_id", "");
    /* What workers of another make write into their rows breaks no listing. */
    run(conn, "UPDATE millrace.worker_nodes SET session_lock = NULL,"
              " info = '{\"locks\": \"mine\", \"consumers\": [1]}'");
    assert_cell(conn, "mine", "state", "no worker can run it");
    PQclear(list(conn, "workers"));
}

static void what_happened(void **state)
{
    PGconn *conn = conn_of(state);
    move_to(conn, "p#0/2", 0);
    move_to(conn, "p#1/2", 0);
    run(conn, "INSERT INTO millrace.consumer_audit (consumer_name, action, actor, reason, detail)"
              " VALUES ('p', 'pause', 'ann', 'a deploy', '{\"slots\": 2}'),"
              " ('p#1/2', 'reset', 'bob', NULL, '{}'), ('q', 'skip', 'ann', NULL, '{}')");
    PGresult *rows = list(conn, "audit");
    assert_int_equal(PQntuples(rows), 3);
    assert_string_equal(cell(rows, 0, "consumer"), "q");
    assert_string_equal(cell(rows, 2, "detail"), "{\"slots\": 2}");
    PQclear(rows);
    rows = list(conn, "audit:p");
    assert_int_equal(PQntuples(rows), 2);
    assert_string_equal(cell(rows, 0, "action"), "reset");
    PQclear(rows);
    rows = list(conn, "audit:p#0/2"); /* what was done to all of it was done to this slot */
    assert_int_equal(PQntuples(rows), 1);
    PQclear(rows);
    add_letter(conn, "p#0/2", 4, "poison");
    add_letter(conn, "p#1/2", 5, "poison");
    add_letter(conn, "x:y", 6, "parked");
    rows = list(conn, "dead_letters:p");
    assert_int_equal(PQntuples(rows), 2);
    assert_string_equal(cell(rows, 0, "position"), "5");
    PQclear(rows);
    rows = list(conn, "dead_letters:x:y"); /* a name may have a colon */
    assert_int_equal(PQntuples(rows), 1);
    PQclear(rows);
    rows = list(conn, "gaps.list:p");
    assert_int_equal(PQntuples(rows), 0);
    PQclear(rows);
    /* However much the others have, a consumer's own rows are found. */
    run(conn, "INSERT INTO millrace.consumer_audit (consumer_name, action)"
              " SELECT 'q', 'noise' FROM generate_series(1, 1500)");
    rows = list(conn, "audit");
    assert_int_equal(PQntuples(rows), 1000);
    PQclear(rows);
    rows = list(conn, "audit:p");
    assert_int_equal(PQntuples(rows), 2);
    PQclear(rows);
}

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        WATCH(health_has_the_figures), WATCH(each_reason),
        WATCH(slots_in_order),         WATCH(paused_consumers_say_why),
        WATCH(slots_share_a_problem),  WATCH(owners_by_lock),
        WATCH(what_happened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
