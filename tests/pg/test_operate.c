/* Pause, resume, reset and skip against a real server: what they change, what they refuse, and that
 * no batch of the old state commits once they have returned. */
#include "operate_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define CONTROLS(columns)                                                                          \
    "SELECT " columns " FROM millrace.consumer_controls WHERE consumer_name = 'c'"
#define AUDIT(columns) "SELECT " columns " FROM millrace.consumer_audit ORDER BY id DESC LIMIT 1"
#define STATE CONTROLS("concat_ws(',', paused, pause_kind, paused_by, pause_reason, epoch)")
#define PLACE "SELECT last_position FROM millrace.consumer_checkpoints WHERE consumer_name = 'c'"

static mr_error *do_pause(const operating *o, const char *name)
{
    return mr_consumer_pause(o->conn, o->conf, name, "ann", "lunch");
}

static mr_error *do_skip(const operating *o, const char *name, int64_t position)
{
    return mr_consumer_skip(o->conn, o->conf, name, position, "ann", "broken");
}

static mr_error *do_reset(const operating *o, const char *to)
{
    int64_t position = -1;
    mr_error *error = mr_consumer_reset(o->conn, o->conf, "c", to, "ann", NULL, &position);
    if (error == NULL)
        assert_int_equal(position, number(o->conn, PLACE));
    else
        assert_int_equal(position, -1);
    assert_int_equal(PQtransactionStatus(o->conn), PQTRANS_IDLE);
    return error;
}

static void fail_at(const operating *o, int position)
{
    char sql[160];
    (void)snprintf(sql, sizeof(sql),
                   "SELECT millrace.note_failure('c', gen_random_uuid(), 'no', %d, true)",
                   position);
    run(o->conn, sql);
}

/* ---- Pause and resume ---------------------------------------------------------------------- */

static void pause_and_resume(void **state)
{
    operating *o = *state;
    consumer(o, "c", 3);
    run(o->conn, "SELECT millrace.advance_checkpoint('c', NULL, 3, 4, 0)");
    assert_ok(do_pause(o, "c"));
    assert_string_equal(value(o->conn, STATE), "t,command,ann,lunch,1");
    assert_string_equal(value(o->conn, CONTROLS("paused_at > now() - interval '1 minute'")), "t");
    assert_string_equal(
        value(o->conn, AUDIT("concat_ws(',', action, actor, reason, detail->>'position')")),
        "pause,ann,lunch,4");
    assert_string_equal(
        sqlstate_of(o->conn, "SELECT millrace.advance_checkpoint('c', NULL, 4, 5, 0)"), "MR009");
    /* Again: fine, said, and the first one's stays. */
    assert_ok(mr_consumer_pause(o->conn, o->conf, "c", "bob", NULL));
    assert_string_equal(value(o->conn, STATE), "t,command,ann,lunch,2");
    assert_string_equal(value(o->conn, AUDIT("concat_ws(',', actor, detail->>'already',"
                                             " detail->'was'->>'by')")),
                        "bob,true,ann");
    run(o->conn, "UPDATE millrace.consumer_controls SET last_error = 'x', last_error_position = 1");
    assert_ok(mr_consumer_resume(o->conn, o->conf, "c", NULL, NULL));
    assert_string_equal(value(o->conn, STATE), "f,3");
    assert_string_equal(value(o->conn, CONTROLS("num_nulls(last_error, last_error_at,"
                                                " last_error_position, paused_at)")),
                        "4");
    assert_string_equal(value(o->conn, AUDIT("concat_ws(',', action, actor, detail->>'already',"
                                             " detail->>'last_error')")),
                        "resume,false,x");
    assert_ok(mr_consumer_resume(o->conn, o->conf, "c", "ann", NULL));
    assert_string_equal(value(o->conn, AUDIT("detail->>'already'")), "true");
    assert_int_equal(number(o->conn, "SELECT count(*) FROM millrace.consumer_audit"), 4);
}

static void a_failure_becomes_a_command(void **state)
{
    operating *o = *state;
    consumer(o, "c", 3);
    fail_at(o, 4);
    assert_ok(do_pause(o, "c"));
    assert_string_equal(value(o->conn, STATE), "t,command,ann,lunch,2");
    assert_string_equal(value(o->conn, CONTROLS("last_error_position")), "4");
    /* A pause from before there were kinds is a person's. */
    run(o->conn, "UPDATE millrace.consumer_controls SET pause_kind = NULL");
    assert_ok(do_reset(o, "0"));
    assert_string_equal(value(o->conn, CONTROLS("paused")), "t");
    assert_ok(mr_consumer_resume(o->conn, o->conf, "c", NULL, NULL));
    assert_string_equal(value(o->conn, CONTROLS("paused")), "f");
}

static void names_nobody_has(void **state)
{
    operating *o = *state;
    consumer(o, "c", 3);
    static const char *const names[] = {"d",
                                        "C",
                                        "c ",
                                        "c%",
                                        "c_",
                                        ".",
                                        ".*",
                                        "c#0/1",
                                        "c#",
                                        "c' OR '1'='1",
                                        "c\\",
                                        "\"c\"",
                                        "'; DROP TABLE millrace.consumer_checkpoints; --"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_error(do_pause(o, names[i]), MR_E_USAGE, "there is no consumer");
        assert_error(mr_consumer_resume(o->conn, o->conf, names[i], NULL, NULL), MR_E_USAGE,
                     names[i]);
        assert_error(mr_consumer_reset(o->conn, o->conf, names[i], "now", NULL, NULL, NULL),
                     MR_E_USAGE, "consumers list");
        assert_error(do_skip(o, names[i], 5), MR_E_USAGE, "there is no consumer");
    }
    assert_error(do_pause(o, ""), MR_E_USAGE, "needs a consumer's name");
    assert_error(do_pause(o, "c\xff"), MR_E_USAGE, "not valid UTF-8");
    assert_error(mr_consumer_pause(o->conn, o->conf, "c", "\xc0", NULL), MR_E_USAGE, "actor");
    assert_error(mr_consumer_pause(o->conn, o->conf, "c", NULL, "\x80"), MR_E_USAGE, "reason");
    assert_error(mr_consumer_control(o->conn, o->conf, "c", "explode", NULL, NULL, NULL, NULL),
                 MR_E_USAGE, "pause, resume, reset or skip");
    assert_error(mr_consumer_control(o->conn, o->conf, "c", "reset", NULL, NULL, NULL, NULL),
                 MR_E_USAGE, "must be told where to");
    assert_error(mr_consumer_control(o->conn, o->conf, "c", "pause", "x", NULL, NULL, NULL),
                 MR_E_USAGE, "takes no argument");
    assert_int_equal(number(o->conn, "SELECT (SELECT count(*) FROM millrace.consumer_audit)"
                                     " + (SELECT count(*) FROM millrace.consumer_controls)"),
                     0);
    assert_int_equal(number(o->conn, PLACE), 3);
}

static void names_of_any_kind(void **state)
{
    operating *o = *state;
    static const char *const names[] = {"'; DROP TABLE millrace.consumer_checkpoints; --",
                                        "a\"b",
                                        "back\\slash",
                                        "100%",
                                        "a_b",
                                        "sp ace",
                                        "ünïcode ☃",
                                        "$1",
                                        "{{fn:x}}",
                                        "a.b",
                                        "(a|b)+",
                                        "a\nb"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        consumer(o, names[i], 0);
        assert_ok(mr_consumer_pause(o->conn, o->conf, names[i], names[i], names[i]));
        assert_string_equal(value_of(o->conn,
                                     "SELECT paused_by = $1 AND pause_reason = $1 FROM"
                                     " millrace.consumer_controls WHERE consumer_name = $1",
                                     names[i]),
                            "t");
        assert_ok(do_skip(o, names[i], 4));
        assert_ok(mr_consumer_reset(o->conn, o->conf, names[i], "2", names[i], names[i], NULL));
        assert_ok(mr_consumer_resume(o->conn, o->conf, names[i], names[i], names[i]));
        assert_string_equal(value_of(o->conn,
                                     "SELECT count(*) FROM millrace.consumer_audit"
                                     " WHERE consumer_name = $1",
                                     names[i]),
                            "4");
    }
    assert_int_equal(number(o->conn, "SELECT count(*) FROM millrace.consumer_checkpoints"),
                     sizeof(names) / sizeof(names[0]));
}

/* ---- Slots --------------------------------------------------------------------------------- */

static void a_name_means_all_its_slots(void **state)
{
    operating *o = *state;
    static const char *const names[] = {"c#0/3", "c#1/3", "c#2/3", "cc#0/1", "c#x/3", "c#0/3x"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        consumer(o, names[i], (int64_t)i);
    static const char paused[] = "SELECT string_agg(consumer_name, ' ' ORDER BY consumer_name) FROM"
                                 " millrace.consumer_controls WHERE paused";
    assert_ok(do_pause(o, "c"));
    assert_string_equal(value(o->conn, paused), "c#0/3 c#1/3 c#2/3");
    assert_int_equal(number(o->conn, "SELECT count(*) FROM millrace.consumer_audit"), 3);
    assert_ok(mr_consumer_resume(o->conn, o->conf, "c#1/3", NULL, NULL));
    assert_string_equal(value(o->conn, paused), "c#0/3 c#2/3");
    assert_string_equal(value(o->conn, "SELECT string_agg(epoch::text, ' ' ORDER BY consumer_name)"
                                       " FROM millrace.consumer_controls"),
                        "1 2 1");
    int64_t position = 0;
    assert_ok(mr_consumer_reset(o->conn, o->conf, "c", "7", NULL, NULL, &position));
    assert_int_equal(position, 7);
    assert_string_equal(value(o->conn, "SELECT string_agg(detail->>'from' || ':' ||"
                                       " (detail->>'skipped_from'), ' ' ORDER BY consumer_name)"
                                       " FROM millrace.consumer_audit WHERE action = 'reset'"),
                        "0:1 1:2 2:3");
    assert_string_equal(value(o->conn, "SELECT string_agg(last_position::text, ' ' ORDER BY"
                                       " consumer_name) FROM millrace.consumer_checkpoints"
                                       " WHERE consumer_name ~ '^c#[012]/3$'"),
                        "7 7 7");
}

static void streams_have_their_slot(void **state)
{
    operating *o = *state;
    /* A contract: computed apart from this code. */
    assert_int_equal(mr_partition_of("Order", "o-1", 8), 3);
    assert_int_equal(mr_partition_of("Order", "o-2", 8), 0);
    assert_int_equal(mr_partition_of("", "", 64), 27);
    assert_int_equal(mr_partition_of("Örder", "ü", 64), 21);
    assert_int_equal(mr_partition_of("A", "B", 64), 37);
    assert_int_equal(mr_partition_of("AB", "", 64), 33);
    assert_int_equal(mr_partition_of("Order", "o-1", 1), 0);
    assert_int_equal(mr_partition_of("Order", "o-1", 0), 0);
    consumer(o, "c#0/2", 0);
    consumer(o, "c#1/2", 0);
    assert_ok(do_skip(o, "c", 4)); /* o-1 is of slot 1 */
    assert_ok(do_skip(o, "c#0/2", 9));
    assert_error(do_skip(o, "c#0/2", 5), MR_E_STATE, "belongs to another slot");
    assert_string_equal(value(o->conn, "SELECT string_agg(consumer_name || '=' ||"
                                       " (skips->0->>'position'), ' ' ORDER BY consumer_name)"
                                       " FROM millrace.consumer_controls"),
                        "c#0/2=9 c#1/2=4");
    consumer(o, "c", 0); /* left from before it had slots */
    assert_error(do_skip(o, "c", 5), MR_E_USAGE, "name one slot");
}

/* ---- Reset --------------------------------------------------------------------------------- */

static void reset_back_and_forth(void **state)
{
    operating *o = *state;
    consumer(o, "c", 6);
    run(o->conn, "INSERT INTO millrace.consumer_dead_letters (consumer_name, global_position)"
                 " VALUES ('c', 2), ('c', 4), ('c', 5), ('d', 5)");
    assert_ok(do_skip(o, "c", 8));
    assert_ok(do_skip(o, "c", 10));
    assert_ok(do_reset(o, "3"));
    assert_string_equal(value(o->conn, AUDIT("detail")),
                        "{\"to\": 3, \"from\": 6, \"skips\": [], \"letters\": [4, 5],"
                        " \"resumed\": false}");
    assert_string_equal(value(o->conn, "SELECT string_agg(consumer_name || global_position, ' '"
                                       " ORDER BY id) FROM millrace.consumer_dead_letters"),
                        "c2 d5");
    assert_int_equal(number(o->conn, CONTROLS("jsonb_array_length(skips)")), 2);
    assert_ok(do_reset(o, "9"));
    assert_string_equal(
        value(o->conn, AUDIT("concat_ws(',', detail->>'skipped_from', detail->>'skipped_to',"
                             " detail->'skips'->0->>'position', detail->'letters')")),
        "4,9,8,[]");
    assert_string_equal(value(o->conn, CONTROLS("skips->0->>'position'")), "10");
    assert_ok(do_reset(o, "now"));
    assert_int_equal(number(o->conn, PLACE), 10);
    assert_ok(do_reset(o, "10"));
    assert_ok(do_reset(o, "beginning"));
    assert_int_equal(number(o->conn, PLACE), 0);
    run(o->conn, "UPDATE events SET created_at = '2026-01-01T00:00:00Z'::timestamptz"
                 " + global_position * interval '1 hour'");
    assert_ok(do_reset(o, "2026-01-01T06:30:00Z"));
    assert_int_equal(number(o->conn, PLACE), 6);
    assert_ok(do_reset(o, "2026-01-01T06:00:00Z"));
    assert_int_equal(number(o->conn, PLACE), 5);
    assert_ok(do_reset(o, "2030-01-01"));
    assert_int_equal(number(o->conn, PLACE), 10);
    assert_int_equal(number(o->conn, CONTROLS("epoch")),
                     number(o->conn, "SELECT count(*) FROM millrace.consumer_audit"));
}

static void resets_that_are_refused(void **state)
{
    operating *o = *state;
    consumer(o, "c", 6);
    assert_error(do_reset(o, "11"), MR_E_USAGE, "the log ends at 10");
    assert_error(do_reset(o, "9223372036854775807"), MR_E_USAGE, "'now' is the furthest");
    assert_error(do_reset(o, "-1"), MR_E_USAGE, "negative");
    assert_error(do_reset(o, "soon"), MR_E_USAGE, "'soon' is not beginning");
    assert_error(do_reset(o, ""), MR_E_USAGE, "is not beginning");
    assert_error(do_reset(o, "99999999999999999999"), MR_E_USAGE, "is not beginning");
    assert_error(do_reset(o, "0'; DROP TABLE events; --"), MR_E_USAGE, "is not beginning");
    assert_int_equal(number(o->conn, PLACE), 6);
    assert_int_equal(number(o->conn, "SELECT count(*) FROM millrace.consumer_audit"), 0);
}

static void reset_ends_a_failure(void **state)
{
    operating *o = *state;
    consumer(o, "c", 6);
    fail_at(o, 7);
    assert_ok(do_reset(o, "3"));
    assert_string_equal(value(o->conn, STATE), "f,2");
    assert_string_equal(value(o->conn, CONTROLS("last_error IS NULL")), "t");
    assert_string_equal(value(o->conn, AUDIT("detail->>'resumed'")), "true");
    assert_ok(do_pause(o, "c"));
    assert_ok(do_reset(o, "2"));
    assert_string_equal(value(o->conn, STATE), "t,command,ann,lunch,4");
}

/* ---- Skip ---------------------------------------------------------------------------------- */

static void skip_leaves_a_request(void **state)
{
    operating *o = *state;
    consumer(o, "c", 3);
    assert_ok(do_skip(o, "c", 5));
    assert_string_equal(value(o->conn, CONTROLS("concat_ws(',', jsonb_array_length(skips),"
                                                " skips->0->>'position', skips->0->>'by',"
                                                " skips->0->>'reason', epoch)")),
                        "1,5,ann,broken,1");
    assert_error(do_skip(o, "c", 5), MR_E_STATE, "ann asked for it");
    assert_error(do_skip(o, "c", 3), MR_E_STATE, "its checkpoint is at 3");
    run(o->conn, "INSERT INTO millrace.consumer_dead_letters (consumer_name, global_position)"
                 " VALUES ('c', 2)");
    assert_error(do_skip(o, "c", 2), MR_E_STATE, "dead-letters drop");
    assert_error(do_skip(o, "c", 11), MR_E_STATE, "beyond the head");
    assert_error(do_skip(o, "c", 0), MR_E_USAGE, "is not a position");
    assert_error(do_skip(o, "c", -5), MR_E_USAGE, "is not a position");
    run(o->conn, "DELETE FROM events WHERE global_position = 7");
    assert_error(do_skip(o, "c", 7), MR_E_STATE, "gaps open");
    assert_string_equal(value(o->conn, CONTROLS("epoch")), "1");
    /* The batch that comes to it turns the request into a row that says who and why. */
    run(o->conn, "SELECT millrace.pass_skips('c', NULL, '{5}')");
    assert_string_equal(value(o->conn, "SELECT concat_ws(',', gap_position, decided_by, reason)"
                                       " FROM millrace.consumer_gap_skips"),
                        "5,ann,broken");
}

static void skip_ends_the_failure_it_is_for(void **state)
{
    operating *o = *state;
    consumer(o, "c", 3);
    fail_at(o, 4);
    assert_ok(do_skip(o, "c", 6));
    assert_string_equal(value(o->conn, CONTROLS("paused")), "t");
    assert_ok(do_skip(o, "c", 4));
    assert_string_equal(value(o->conn, CONTROLS("concat_ws(',', paused, pause_kind, last_error)")),
                        "f");
    assert_string_equal(value(o->conn, AUDIT("detail->>'resumed'")), "true");
}

/* ---- Exactness ----------------------------------------------------------------------------- */

typedef struct pauser {
    const operating *o;
    PGconn *conn;
    mr_error *error;
} pauser;

static void *pause_thread(void *argument)
{
    pauser *p = argument;
    p->error = mr_consumer_pause(p->conn, p->o->conf, "c", "ann", NULL);
    return NULL;
}

/* A running batch ends first; it may still do all that batches do, and one that comes later with
 * the old epoch is refused. */
static void a_pause_waits_for_the_batch(void **state)
{
    operating *o = *state;
    consumer(o, "c", 3);
    assert_ok(do_skip(o, "c", 4));
    for (int round = 0; round < 2; round++) {
        pauser p = {.o = o, .conn = scratch_connect(o->scratch)};
        PGconn *batch = scratch_connect(o->scratch);
        if (round == 1) /* what the command waited for must be seen whatever the default is */
            run(p.conn, "SET default_transaction_isolation = 'serializable'");
        run(batch, "BEGIN");
        run(batch, round == 0 ? "SELECT millrace.advance_checkpoint('c', NULL, 3, 4, 1)"
                              : "SELECT millrace.advance_checkpoint('c', NULL, 4, 5, 2)");
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, pause_thread, &p), 0);
        wait_for_waiter(o->conn);
        run(batch, "SELECT millrace.pass_skips('c', NULL, '{4}')"); /* no deadlock */
        assert_string_equal(value(o->conn, CONTROLS("paused")), round == 0 ? "f" : "t");
        run(batch, "COMMIT");
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_ok(p.error);
        assert_int_equal(number(o->conn, AUDIT("detail->>'position'")), 4 + round);
        assert_string_equal(
            sqlstate_of(batch, round == 0
                                   ? "SELECT millrace.advance_checkpoint('c', NULL, 4, 5, 1)"
                                   : "SELECT millrace.advance_checkpoint('c', NULL, 5, 6, 2)"),
            "MR009");
        PQfinish(batch);
        PQfinish(p.conn);
    }
}

typedef struct batches {
    PGconn *conn;
    atomic_bool stop;
    atomic_int fenced;
} batches;

/* Batch after batch as a worker that never looks at the controls again. */
static void *batch_thread(void *argument)
{
    batches *b = argument;
    while (!atomic_load(&b->stop)) {
        PGresult *result =
            PQexec(b->conn, "SELECT millrace.advance_checkpoint('c', NULL, last_position,"
                            " last_position + 1, 0) FROM millrace.consumer_checkpoints"
                            " WHERE consumer_name = 'c'");
        const char *code = PQresultErrorField(result, PG_DIAG_SQLSTATE);
        if (code != NULL && strcmp(code, "MR009") == 0)
            atomic_fetch_add(&b->fenced, 1);
        PQclear(result);
    }
    return NULL;
}

static void nothing_commits_after_a_pause(void **state)
{
    operating *o = *state;
    consumer(o, "c", 0);
    batches b = {.conn = scratch_connect(o->scratch)};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, batch_thread, &b), 0);
    wait_for(o->conn, "SELECT last_position > 20 FROM millrace.consumer_checkpoints");
    assert_ok(do_pause(o, "c"));
    int64_t reached = number(o->conn, PLACE);
    assert_int_equal(number(o->conn, AUDIT("detail->>'position'")), reached);
    int before = atomic_load(&b.fenced);
    while (atomic_load(&b.fenced) < before + 20)
        run(o->conn, "SELECT 1");
    assert_int_equal(number(o->conn, PLACE), reached);
    atomic_store(&b.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    PQfinish(b.conn);
}

/* The wait is bounded, and the message says for whom. The bound itself is too long for a test. */
static void a_batch_that_never_ends(void **state)
{
    operating *o = *state;
    consumer(o, "c", 3);
    run(o->conn, "DO $$ BEGIN EXECUTE replace(replace(pg_get_functiondef("
                 "'millrace.hold_parts'::regproc), '35 seconds', '0.2 seconds'), '35s', '200ms');"
                 " END $$");
    PGconn *batch = scratch_connect(o->scratch);
    run(batch, "SET application_name = 'millrace 0193-stuck'; BEGIN");
    run(batch, "SELECT millrace.advance_checkpoint('c', NULL, 3, 4, 0)");
    char session[32];
    (void)snprintf(session, sizeof(session), "(session %d, ", PQbackendPID(batch));
    assert_error(do_pause(o, "c"), MR_E_STATE, "a batch of consumer c is still running");
    assert_error(do_pause(o, "c"), MR_E_STATE, "millrace 0193-stuck, for ");
    assert_error(do_reset(o, "0"), MR_E_STATE, session);
    assert_error(do_skip(o, "c", 5), MR_E_STATE, "nothing was changed; try again");
    run(batch, "ROLLBACK");
    assert_int_equal(number(o->conn, "SELECT count(*) FROM millrace.consumer_audit"), 0);
    assert_ok(do_pause(o, "c"));
    PQfinish(batch);
}

/* ---- Around it ----------------------------------------------------------------------------- */

static void workers_are_told(void **state)
{
    operating *o = *state;
    consumer(o, "c", 3);
    char channel[MR_CHANNEL_MAX], sql[64];
    assert_ok(mr__names_channel(&o->log.names, channel));
    (void)snprintf(sql, sizeof(sql), "LISTEN \"%s\"", channel);
    run(o->conn, sql);
    for (int i = 0; i < 4; i++) {
        assert_ok(i == 0   ? do_pause(o, "c")
                  : i == 1 ? mr_consumer_resume(o->conn, o->conf, "c", NULL, NULL)
                  : i == 2 ? do_reset(o, "4")
                           : do_skip(o, "c", 5));
        run(o->conn, "SELECT 1");
        PGnotify *note = PQnotifies(o->conn);
        assert_non_null(note);
        assert_string_equal(note->relname, channel);
        PQfreemem(note);
    }
    assert_error(do_skip(o, "c", 5), MR_E_STATE, "already");
    run(o->conn, "SELECT 1");
    assert_null(PQnotifies(o->conn));
}

static void only_outside_of_a_transaction(void **state)
{
    operating *o = *state;
    consumer(o, "c", 3);
    run(o->conn, "BEGIN");
    assert_error(do_pause(o, "c"), MR_E_USAGE, "outside of a transaction");
    assert_int_equal(PQtransactionStatus(o->conn), PQTRANS_INTRANS);
    run(o->conn, "ROLLBACK");
    assert_ok(mr_conf_set(o->conf, "schema", "elsewhere"));
    assert_error(do_pause(o, "c"), MR_E_SCHEMA, "schema apply");
    assert_int_equal(PQtransactionStatus(o->conn), PQTRANS_IDLE);
}

static void odd_names(void **state)
{
    operating *o = *state;
    PGconn *conn = o->conn;
    static const char *const settings[][2] = {
        {"schema", "Mill Race\"s"},
        {"consumer_checkpoints_table", "\"Odd \"\"table\"\" \\ it's : $1\""},
        {"consumer_controls_table", "UPPER.Controls"},
        {"consumer_audit_table", "infra.%s the audit"},
        {"consumer_dead_letters_table",
         "infra.a_name_of_exactly_sixty_three_bytes_which_is_the_most_there_is1"}};
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        assert_ok(mr_conf_set(o->conf, settings[i][0], settings[i][1]));
    assert_ok(mr_schema_apply(conn, o->conf, NULL));
    run(conn, "INSERT INTO \"Mill Race\"\"s\".\"Odd \"\"table\"\" \\ it's : $1\""
              " (consumer_name, last_position) VALUES ('c', 3)");
    PGresult *rows = NULL;
    assert_ok(mr_consumer_control(conn, o->conf, "c", "skip", "5", "ann", "why", &rows));
    assert_int_equal(PQntuples(rows), 1);
    assert_string_equal(PQgetvalue(rows, 0, PQfnumber(rows, "consumer")), "c");
    assert_string_equal(PQgetvalue(rows, 0, PQfnumber(rows, "action")), "skip");
    PQclear(rows);
    assert_ok(do_pause(o, "c"));
    int64_t position = 0;
    assert_ok(mr_consumer_reset(conn, o->conf, "c", "7", NULL, NULL, &position));
    assert_int_equal(position, 7);
    assert_ok(mr_consumer_resume(conn, o->conf, "c", NULL, NULL));
    assert_string_equal(value(conn, "SELECT string_agg(action, ' ' ORDER BY id) FROM"
                                    " infra.\"%s the audit\""),
                        "skip pause reset resume");
    assert_string_equal(value(conn, "SELECT epoch FROM \"UPPER\".\"Controls\""), "4");
    run(conn, "INSERT INTO infra.a_name_of_exactly_sixty_three_bytes_which_is_the_most_there_is1"
              " (consumer_name, global_position) VALUES ('c', 1), ('c', 2)");
    mr_letters *letters = mr_letters_new();
    assert_ok(mr_letters_filter(letters, "position", "2"));
    assert_ok(mr_letters_list(conn, o->conf, letters, true, &rows));
    assert_int_equal(PQntuples(rows), 1);
    PQclear(rows);
    assert_error(mr_letters_replay(conn, o->conf, letters, false, NULL, 0, NULL, NULL),
                 MR_E_TIMEOUT, "no worker that is alive");
    int64_t dropped = 0;
    assert_ok(mr_letters_drop(conn, o->conf, letters, false, NULL, NULL, &dropped));
    assert_int_equal(dropped, 1);
    mr_letters_free(letters);
}

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        OPERATING(pause_and_resume),
        OPERATING(a_failure_becomes_a_command),
        OPERATING(names_nobody_has),
        OPERATING(names_of_any_kind),
        OPERATING(a_name_means_all_its_slots),
        OPERATING(streams_have_their_slot),
        OPERATING(reset_back_and_forth),
        OPERATING(resets_that_are_refused),
        OPERATING(reset_ends_a_failure),
        OPERATING(skip_leaves_a_request),
        OPERATING(skip_ends_the_failure_it_is_for),
        OPERATING(a_pause_waits_for_the_batch),
        OPERATING(nothing_commits_after_a_pause),
        OPERATING(a_batch_that_never_ends),
        OPERATING(workers_are_told),
        OPERATING(only_outside_of_a_transaction),
        OPERATING(odd_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
