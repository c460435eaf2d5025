/* Dead letters against a real server: filters, listing, dropping, and asking for a replay; a thread
 * stands in for the worker. */
#include "operate_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LETTERS "millrace.consumer_dead_letters"

/* Letters at 1, 3 and 7 of a; 3 of b; 9 of two slots of p. */
static void make_letters(const operating *o)
{
    consumer(o, "a", 10);
    consumer(o, "b", 10);
    consumer(o, "p#0/2", 10);
    consumer(o, "p#1/2", 10);
    run(o->conn,
        "INSERT INTO " LETTERS " (consumer_name, global_position, state, aggregate_type,"
        " aggregate_id, event_type, error, sqlstate, attempts, created_at) VALUES"
        " ('a', 1, 'poison', 'Order', 'o-1', 'Placed', 'Division by zero', '22012', 3,"
        "  '2026-01-01T10:00:00Z'),"
        " ('a', 3, 'parked', 'Order', 'o-1', 'Paid', NULL, NULL, 0, '2026-01-01T11:00:00Z'),"
        " ('a', 7, 'poison', 'Order', 'o-2', 'Placed', '100% wrong_', '23505', 5,"
        "  '2026-01-01T12:00:00Z'),"
        " ('b', 3, 'poison', 'Invoice', 'o-1', 'Paid', 'it''s \"bad\"', NULL, 1,"
        "  '2026-01-02T10:00:00Z'),"
        " ('p#0/2', 9, 'poison', 'Order', 'o-2', 'Placed', 'x', NULL, 1, '2026-01-03T10:00:00Z'),"
        " ('p#1/2', 9, 'poison', 'Order', 'o-2', 'Placed', 'x', NULL, 1, '2026-01-03T10:00:00Z')");
}

/* "consumer:position …" of what a filter finds. */
static const char *found(const operating *o, const mr_letters *letters)
{
    static char text[4096];
    PGresult *rows = NULL;
    assert_ok(mr_letters_list(o->conn, o->conf, letters, false, &rows));
    text[0] = '\0';
    size_t length = 0;
    for (int i = 0; i < PQntuples(rows); i++)
        length +=
            (size_t)snprintf(text + length, sizeof(text) - length, "%s%s:%s", i == 0 ? "" : " ",
                             PQgetvalue(rows, i, PQfnumber(rows, "consumer")),
                             PQgetvalue(rows, i, PQfnumber(rows, "position")));
    PQclear(rows);
    return text;
}

static mr_letters *filter(const char *field, const char *wanted)
{
    mr_letters *letters = mr_letters_new();
    assert_non_null(letters);
    assert_ok(mr_letters_filter(letters, field, wanted));
    return letters;
}

/* ---- Filters ------------------------------------------------------------------------------- */

static void each_field_narrows_down(void **state)
{
    operating *o = *state;
    make_letters(o);
    assert_string_equal(found(o, NULL), "a:1 a:3 b:3 a:7 p#0/2:9 p#1/2:9");
    static const struct {
        const char *field, *value, *found;
    } cases[] = {
        {"consumer", "a", "a:1 a:3 a:7"},
        {"consumer", "p", "p#0/2:9 p#1/2:9"},
        {"consumer", "p#1/2", "p#1/2:9"},
        {"consumer", "p#", ""},
        {"consumer", "A", ""},
        {"consumer", "%", ""},
        {"position", "3", "a:3 b:3"},
        {"from", "7", "a:7 p#0/2:9 p#1/2:9"},
        {"to", "1", "a:1"},
        {"aggregate_type", "Invoice", "b:3"},
        {"aggregate_id", "o-1", "a:1 a:3 b:3"},
        {"event_type", "Paid", "a:3 b:3"},
        {"state", "parked", "a:3"},
        {"error", "division", "a:1"},
        {"error", "%", "a:7"},
        {"error", "_", "a:7"},
        {"error", "'s \"b", "b:3"},
        {"before", "2026-01-01T11:00:00Z", "a:1"},
        {"after", "2026-01-02T10:00:00Z", "p#0/2:9 p#1/2:9"},
        {"aggregate_id", "' OR '1'='1", ""},
        {"event_type", "Paid'; DROP TABLE millrace.consumer_dead_letters; --", ""},
        {"error", "\\", ""},
        {"error", "{\"consumer\":\"a\"}", ""},
        {"aggregate_type", "\", \"consumer\": \"b", ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        mr_letters *letters = filter(cases[i].field, cases[i].value);
        assert_string_equal(found(o, letters), cases[i].found);
        mr_letters_free(letters);
    }
    mr_letters *letters = filter("consumer", "a");
    assert_ok(mr_letters_filter(letters, "from", "2"));
    assert_ok(mr_letters_filter(letters, "to", "6"));
    assert_string_equal(found(o, letters), "a:3");
    assert_ok(mr_letters_filter(letters, "to", "7")); /* the last one counts */
    assert_ok(mr_letters_filter(letters, "state", "poison"));
    assert_string_equal(found(o, letters), "a:7");
    assert_ok(mr_letters_filter(letters, "state", NULL));
    assert_ok(mr_letters_filter(letters, "consumer", NULL));
    assert_string_equal(found(o, letters), "a:3 b:3 a:7");
    mr_letters_free(letters);
}

static void filters_that_are_refused(void **state)
{
    operating *o = *state;
    make_letters(o);
    mr_letters *letters = mr_letters_new();
    assert_error(mr_letters_filter(letters, "eror", "x"), MR_E_USAGE, "did you mean error?");
    assert_error(mr_letters_filter(letters, "id = 1 OR 1", "x"), MR_E_USAGE, "no field");
    assert_error(mr_letters_filter(letters, "position", "x"), MR_E_USAGE, "'x' is not a position");
    assert_error(mr_letters_filter(letters, "from", "-1"), MR_E_USAGE, "is not a position");
    assert_error(mr_letters_filter(letters, "to", "99999999999999999999"), MR_E_USAGE,
                 "is not a position");
    assert_error(mr_letters_filter(letters, "state", "odd"), MR_E_USAGE, "poison or parked");
    assert_error(mr_letters_filter(letters, "error", ""), MR_E_USAGE, "empty");
    assert_error(mr_letters_filter(letters, "error", "\xff"), MR_E_USAGE, "UTF-8");
    assert_ok(mr_letters_filter(letters, "before", "teatime"));
    PGresult *rows = NULL;
    assert_error(mr_letters_list(o->conn, o->conf, letters, false, &rows), MR_E_USAGE,
                 "a time looks like");
    assert_null(rows);
    assert_error(mr_letters_drop(o->conn, o->conf, letters, false, NULL, NULL, NULL), MR_E_USAGE,
                 "a time looks like");
    assert_int_equal(PQtransactionStatus(o->conn), PQTRANS_IDLE);
    mr_letters_free(letters);
}

static void a_letter_as_a_whole(void **state)
{
    operating *o = *state;
    make_letters(o);
    run(o->conn, "UPDATE events SET payload = '\\x00ff' WHERE global_position = 3");
    run(o->conn, "DELETE FROM events WHERE global_position = 7");
    mr_letters *letters = filter("consumer", "a");
    PGresult *rows = NULL;
    assert_ok(mr_letters_list(o->conn, o->conf, letters, false, &rows));
    assert_int_equal(PQfnumber(rows, "data"), -1);
    assert_string_equal(PQgetvalue(rows, 0, PQfnumber(rows, "replay")), "f");
    PQclear(rows);
    assert_ok(mr_letters_list(o->conn, o->conf, letters, true, &rows));
    int data = PQfnumber(rows, "data");
    assert_string_equal(PQgetvalue(rows, 0, data), "\\x7b7d");
    assert_string_equal(PQgetvalue(rows, 1, data), "\\x00ff");
    assert_true(PQgetisnull(rows, 2, data)); /* it has left the log */
    assert_string_equal(PQgetvalue(rows, 2, PQfnumber(rows, "error")), "100% wrong_");
    PQclear(rows);
    mr_letters_free(letters);
}

/* ---- Drop ---------------------------------------------------------------------------------- */

static void drop_leaves_an_audit(void **state)
{
    operating *o = *state;
    make_letters(o);
    int64_t dropped = -1;
    assert_error(mr_letters_drop(o->conn, o->conf, NULL, false, "ann", NULL, &dropped), MR_E_USAGE,
                 "say which");
    mr_letters *letters = mr_letters_new();
    assert_error(mr_letters_drop(o->conn, o->conf, letters, false, "ann", NULL, &dropped),
                 MR_E_USAGE, "say which");
    assert_int_equal(dropped, -1);
    assert_ok(mr_letters_filter(letters, "position", "3"));
    assert_ok(mr_letters_drop(o->conn, o->conf, letters, false, "ann", "old", &dropped));
    assert_int_equal(dropped, 2);
    assert_string_equal(found(o, NULL), "a:1 a:7 p#0/2:9 p#1/2:9");
    assert_string_equal(
        value(o->conn, "SELECT string_agg(concat_ws('/', consumer_name, action, actor, reason,"
                       " detail->>'position', detail->>'event_type', detail->>'error'), ' '"
                       " ORDER BY consumer_name) FROM millrace.consumer_audit"),
        "a/drop/ann/old/3/Paid b/drop/ann/old/3/Paid/it's \"bad\"");
    assert_string_equal(
        value(o->conn, "SELECT string_agg(consumer_name || epoch, ' ' ORDER BY consumer_name)"
                       " FROM millrace.consumer_controls"),
        "a1 b1");
    /* Nothing matches: nothing changes, nobody is fenced off. */
    assert_ok(mr_letters_drop(o->conn, o->conf, letters, false, "ann", "old", &dropped));
    assert_int_equal(dropped, 0);
    assert_int_equal(number(o->conn, "SELECT max(epoch) FROM millrace.consumer_controls"), 1);
    /* One whose consumer is gone can be dropped too. */
    run(o->conn, "DELETE FROM millrace.consumer_checkpoints");
    assert_ok(mr_letters_drop(o->conn, o->conf, NULL, true, NULL, NULL, &dropped));
    assert_int_equal(dropped, 4);
    assert_int_equal(number(o->conn, "SELECT count(*) FROM millrace.consumer_audit"
                                     " WHERE action = 'drop'"),
                     6);
    mr_letters_free(letters);
}

/* ---- Replay -------------------------------------------------------------------------------- */

typedef struct stand_in {
    PGconn *conn;
    atomic_bool stop;
} stand_in;

/* Does what a worker does with requests, one at a time by position; position 7 fails again. */
static void *replay_thread(void *argument)
{
    stand_in *worker = argument;
    while (!atomic_load(&worker->stop)) {
        run(worker->conn,
            "WITH next AS (SELECT id, global_position = 7 AS fails FROM " LETTERS
            " WHERE replay_at IS NOT NULL ORDER BY global_position LIMIT 1),"
            " failed AS (UPDATE " LETTERS " l SET replay_at = NULL, error = 'again',"
            " attempts = attempts + 1 FROM next WHERE l.id = next.id AND fails)"
            " DELETE FROM " LETTERS " l USING next WHERE l.id = next.id AND NOT fails");
        run(worker->conn, "SELECT pg_sleep(0.002)");
    }
    return NULL;
}

static void replay_waits_for_the_worker(void **state)
{
    operating *o = *state;
    make_letters(o);
    stand_in worker = {.conn = scratch_connect(o->scratch)};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, replay_thread, &worker), 0);
    int64_t replayed = -1, failed = -1;
    mr_letters *letters = filter("consumer", "a");
    assert_ok(
        mr_letters_replay(o->conn, o->conf, letters, false, "ann", 20000, &replayed, &failed));
    assert_int_equal(replayed, 2);
    assert_int_equal(failed, 1);
    assert_string_equal(found(o, NULL), "b:3 a:7 p#0/2:9 p#1/2:9");
    assert_string_equal(value(o->conn, "SELECT concat_ws('/', consumer_name, action, actor,"
                                       " detail->>'letters', detail->'positions')"
                                       " FROM millrace.consumer_audit"),
                        "a/replay/ann/3/[1, 3, 7]");
    assert_int_equal(number(o->conn, "SELECT epoch FROM millrace.consumer_controls"), 1);
    /* None matches: nothing to wait for. */
    assert_ok(mr_letters_filter(letters, "state", "parked"));
    assert_ok(mr_letters_replay(o->conn, o->conf, letters, false, "ann", 0, &replayed, &failed));
    assert_int_equal(replayed + failed, 0);
    assert_error(mr_letters_replay(o->conn, o->conf, NULL, false, "ann", 0, NULL, NULL), MR_E_USAGE,
                 "say which");
    assert_ok(mr_letters_replay(o->conn, o->conf, NULL, true, NULL, 20000, &replayed, &failed));
    assert_int_equal(replayed, 3);
    assert_int_equal(failed, 1);
    atomic_store(&worker.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    PQfinish(worker.conn);
    mr_letters_free(letters);
}

static void replay_says_why_it_gave_up(void **state)
{
    operating *o = *state;
    make_letters(o);
    int64_t replayed = -1;
    mr_letters *letters = filter("consumer", "a");
    assert_error(mr_letters_replay(o->conn, o->conf, letters, false, "ann", 30, &replayed, NULL),
                 MR_E_TIMEOUT,
                 "3 of 3 dead letters are not replayed after 30 ms: no worker that is"
                 " alive can run consumer a; they stay requested");
    assert_int_equal(replayed, -1);
    assert_int_equal(number(o->conn, "SELECT count(*) FROM " LETTERS
                                     " WHERE replay_by = 'ann' AND replay_at IS NOT NULL"),
                     3);
    /* Slots are known by their own names or by the consumer's. */
    run(o->conn, "INSERT INTO millrace.worker_nodes (worker_id, consumers) VALUES"
                 " (gen_random_uuid(), '{a,p}')");
    assert_error(mr_letters_replay(o->conn, o->conf, letters, false, "ann", 0, NULL, NULL),
                 MR_E_TIMEOUT, "after 0 ms; they stay");
    assert_ok(mr_consumer_pause(o->conn, o->conf, "a", NULL, NULL));
    assert_error(mr_letters_replay(o->conn, o->conf, NULL, true, "ann", 0, NULL, NULL),
                 MR_E_TIMEOUT,
                 "6 of 6 dead letters are not replayed after 0 ms: consumer a is paused; no worker"
                 " that is alive can run consumer b; they stay");
    run(o->conn, "UPDATE millrace.worker_nodes SET heartbeat_at = now() - interval '1 hour'");
    assert_ok(mr_letters_filter(letters, "consumer", "p"));
    assert_error(mr_letters_replay(o->conn, o->conf, letters, false, "ann", 0, NULL, NULL),
                 MR_E_TIMEOUT, "no worker that is alive can run consumer p#0/2; no worker");
    assert_error(mr_letters_replay(o->conn, o->conf, letters, false, "ann", -1, NULL, NULL),
                 MR_E_USAGE, "timeout");
    assert_error(mr_letters_replay(o->conn, o->conf, letters, false, "\xff", 0, NULL, NULL),
                 MR_E_USAGE, "actor");
    mr_letters_free(letters);
}

/* A batch that parks an event behind a letter commits before the letter is dropped, or not at all.
 */
static void drops_wait_for_batches(void **state)
{
    operating *o = *state;
    make_letters(o);
    run(o->conn, "DO $$ BEGIN EXECUTE replace(replace(pg_get_functiondef("
                 "'millrace.hold_parts'::regproc), '35 seconds', '0.2 seconds'), '35s', '200ms');"
                 " END $$");
    PGconn *batch = scratch_connect(o->scratch);
    run(batch, "BEGIN; SELECT millrace.advance_checkpoint('b', NULL, 10, 11, 0)");
    mr_letters *letters = filter("position", "3");
    int64_t dropped = -1;
    assert_error(mr_letters_drop(o->conn, o->conf, letters, false, NULL, NULL, &dropped),
                 MR_E_STATE, "a batch of consumer b is still running");
    assert_string_equal(found(o, letters), "a:3 b:3");
    run(batch, "ROLLBACK");
    assert_ok(mr_letters_drop(o->conn, o->conf, letters, false, NULL, NULL, &dropped));
    assert_int_equal(dropped, 2);
    mr_letters_free(letters);
    PQfinish(batch);
}

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        OPERATING(each_field_narrows_down),     OPERATING(filters_that_are_refused),
        OPERATING(a_letter_as_a_whole),         OPERATING(drop_leaves_an_audit),
        OPERATING(replay_waits_for_the_worker), OPERATING(replay_says_why_it_gave_up),
        OPERATING(drops_wait_for_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
