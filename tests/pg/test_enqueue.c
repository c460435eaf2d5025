/* Producers against a real server: fields, idempotency, the caller's transaction, many jobs in
 * pieces, keys of several producers, wrong input, wake-ups. */
#include "base/clock.h"
#include "queue/enqueue.h"
#include "queue/wake.h"
#include "scratch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)
#define JOBS "millrace.jobs"

typedef struct fixture {
    PGconn *conn;
    mr_conf *conf;
    mr_job_draft *draft;
} fixture;

static void begin(void **state, fixture *f)
{
    *f = (fixture){
        .conn = ((scratch *)*state)->conn, .conf = mr_conf_new(), .draft = mr_job_draft_new()};
    assert_ok(mr_conf_set(f->conf, "no_log", "true"));
    assert_ok(mr_schema_apply(f->conn, f->conf, NULL));
}

static void end(fixture *f)
{
    mr_job_draft_free(f->draft);
    mr_conf_free(f->conf);
}

static mr_error *enqueue(fixture *f, PGconn *conn, const char *field, const char *text, int64_t *id,
                         bool *created)
{
    const char *fields[] = {field, text, NULL};
    return mr_enqueue(conn, f->conf, "mail", "{}", field == NULL ? NULL : fields, id, created);
}

static int64_t jobs(const fixture *f)
{
    return number(f->conn, "SELECT count(*) FROM " JOBS);
}

/* `count` jobs {"n": i}; with `keys` > 0 each has one of so many keys. */
static void fill(fixture *f, int count, int keys, const char *prefix)
{
    mr_job_draft_clear(f->draft);
    for (int i = 0; i < count; i++) {
        char text[64];
        (void)snprintf(text, sizeof(text), "{\"n\": %d}", i);
        assert_ok(mr_job_draft_add(f->draft, text));
        (void)snprintf(text, sizeof(text), "%s%d", prefix, keys > 0 ? i % keys : 0);
        if (keys > 0)
            assert_ok(mr_job_draft_field(f->draft, "key", text));
    }
}

static void all_fields(void **state)
{
    fixture f;
    begin(state, &f);
    const char *fields[] = {"key",
                            "order:\xC3\xA9",
                            "priority",
                            "2",
                            "run_at",
                            "2999-01-31T12:00:00Z",
                            "timeout",
                            "1500ms",
                            "metadata",
                            "{\"by\": \"x\"}",
                            "max_attempts",
                            "7",
                            "idempotency_key",
                            "once",
                            NULL};
    int64_t id = 0;
    bool created = false;
    assert_ok(
        mr_enqueue(f.conn, f.conf, "mail", "{\"a\": [1e3, \"\\u00e9\"]}", fields, &id, &created));
    assert_true(created);
    assert_string_equal(
        value(f.conn,
              "SELECT concat_ws('|', queue, payload, partition_key, priority, run_at AT TIME"
              " ZONE 'UTC', timeout, metadata, max_attempts, idempotency_key, standing)"
              " FROM " JOBS),
        "mail|{\"a\": [1000, \"\xC3\xA9\"]}|order:\xC3\xA9|2|2999-01-31 12:00:00|00:00:01.5|"
        "{\"by\": \"x\"}|7|once|later");
    assert_int_equal(number(f.conn, "SELECT id FROM " JOBS), id);
    int64_t next = 0;
    assert_ok(mr_enqueue(f.conn, f.conf, "mail", NULL, NULL, &next, NULL));
    assert_true(next > id);
    assert_string_equal(value(f.conn, "SELECT payload::text || priority || standing FROM " JOBS
                                      " WHERE partition_key IS NULL"),
                        "{}5ready");
    assert_ok(enqueue(&f, f.conn, "timeout", "1 day", NULL, NULL));
    assert_int_equal(number(f.conn, "SELECT count(*) FROM " JOBS " WHERE timeout = '1 day'"), 1);
    end(&f);
}

static void wrong_values(void **state)
{
    fixture f;
    begin(state, &f);
    mr_job_draft *d = f.draft;
    assert_error(mr_enqueue_many(f.conn, f.conf, "mail", d), MR_E_USAGE, "no jobs");
    assert_error(mr_job_draft_field(d, "key", "x"), MR_E_USAGE, "no job yet");
    assert_error(mr_job_draft_add(d, "{\"a\": }"), MR_E_PARSE,
                 "payload is not valid JSON at byte 7");
    assert_error(mr_job_draft_add(d, ""), MR_E_PARSE, "not valid JSON");
    assert_error(mr_job_draft_add(d, "{} {}"), MR_E_PARSE, "not valid JSON");
    assert_error(mr_job_draft_add(d, "\"\xFF\""), MR_E_PARSE, "not valid UTF-8");
    assert_error(mr_job_draft_add(d, "\"\\u0000\""), MR_E_PARSE, "surrogate");
    assert_error(mr_job_draft_add(d, "\"\\ud83d x\""), MR_E_PARSE, "surrogate");
    assert_error(mr_job_draft_add(d, "\"\\ude00\""), MR_E_PARSE, "surrogate");
    assert_int_equal(mr_job_draft_count(d), 0);
    assert_ok(mr_job_draft_add(d, "\"\\\\u0000 \\ud83d\\ude00\""));
    char longest[MR_JOB_KEY_MAX + 2];
    memset(longest, 'k', sizeof(longest));
    longest[MR_JOB_KEY_MAX + 1] = '\0';
    assert_error(mr_job_draft_field(d, "key", ""), MR_E_USAGE, "1 to 1000 bytes");
    assert_error(mr_job_draft_field(d, "idempotency_key", longest), MR_E_USAGE, "1 to 1000 bytes");
    assert_error(mr_job_draft_field(d, "key", "\xC3"), MR_E_USAGE, "UTF-8");
    assert_error(mr_job_draft_field(d, "priority", "10"), MR_E_USAGE, "from 0 to 9");
    assert_error(mr_job_draft_field(d, "max_attempts", "0"), MR_E_USAGE, "from 1 to");
    assert_error(mr_job_draft_field(d, "timeout", "0"), MR_E_USAGE, "more than 0");
    assert_error(mr_job_draft_field(d, "timeout", "30"), MR_E_USAGE, "no unit");
    assert_error(mr_job_draft_field(d, "metadata", "{"), MR_E_PARSE, "metadata is not valid JSON");
    assert_error(mr_job_draft_field(d, "colour", "red"), MR_E_USAGE, "no field 'colour'");
    assert_error(mr_enqueue_many(f.conn, f.conf, "", d), MR_E_USAGE, "1 to 255 bytes");
    assert_ok(mr_enqueue_many(f.conn, f.conf, "mail", d));
    assert_string_equal(value(f.conn, "SELECT payload #>> '{}' FROM " JOBS),
                        "\\u0000 \xF0\x9F\x98\x80");
    /* What only the server can judge names the job. */
    fill(&f, 5, 0, "");
    assert_ok(mr_job_draft_add(d, "{}"));
    assert_ok(mr_job_draft_field(d, "run_at", "tomorrowish"));
    assert_error(mr_enqueue_many(f.conn, f.conf, "mail", d), MR_E_DB, "job 6: ");
    assert_error(enqueue(&f, f.conn, "timeout", "-1 day", NULL, NULL), MR_E_USAGE, "more than 0");
    assert_int_equal(mr_job_draft_id(d, 0), 0);
    run(f.conn, "BEGIN");
    PQclear(PQexec(f.conn, "SELECT 1/0"));
    assert_error(enqueue(&f, f.conn, NULL, NULL, NULL, NULL), MR_E_USAGE, "has failed");
    run(f.conn, "ROLLBACK");
    assert_int_equal(PQenterPipelineMode(f.conn), 1);
    assert_error(enqueue(&f, f.conn, NULL, NULL, NULL, NULL), MR_E_USAGE, "pipeline mode");
    assert_int_equal(PQexitPipelineMode(f.conn), 1);
    assert_int_equal(jobs(&f), 1);
    run(f.conn, "SET client_min_messages = warning; DROP SCHEMA millrace CASCADE");
    assert_error(enqueue(&f, f.conn, NULL, NULL, NULL, NULL), MR_E_SCHEMA, "schema apply");
    end(&f);
}

static void idempotency(void **state)
{
    fixture f;
    begin(state, &f);
    int64_t first = 0, second = 0;
    bool created = false;
    assert_ok(enqueue(&f, f.conn, "idempotency_key", "a", &first, &created));
    assert_true(created);
    assert_ok(enqueue(&f, f.conn, "idempotency_key", "a", &second, &created));
    assert_false(created);
    assert_int_equal(second, first);
    run(f.conn, "DELETE FROM " JOBS); /* it was done, archived, forgotten */
    assert_ok(enqueue(&f, f.conn, "idempotency_key", "a", &second, &created));
    assert_false(created);
    assert_int_equal(second, first);
    assert_int_equal(jobs(&f), 0);
    const char *fields[] = {"idempotency_key", "a", NULL};
    assert_ok(mr_enqueue(f.conn, f.conf, "other", "{}", fields, &second, &created));
    assert_true(created && second != first);
    /* Twice in one call. */
    for (int i = 0; i < 3; i++) {
        assert_ok(mr_job_draft_add(f.draft, "{}"));
        assert_ok(mr_job_draft_field(f.draft, "idempotency_key", i == 1 ? "c" : "b"));
    }
    assert_ok(mr_enqueue_many(f.conn, f.conf, "mail", f.draft));
    assert_true(mr_job_draft_created(f.draft, 0) && mr_job_draft_created(f.draft, 1));
    assert_false(mr_job_draft_created(f.draft, 2));
    assert_int_equal(mr_job_draft_id(f.draft, 2), mr_job_draft_id(f.draft, 0));
    /* The promise is as good as its transaction. */
    run(f.conn, "BEGIN");
    assert_ok(enqueue(&f, f.conn, "idempotency_key", "d", &first, &created));
    run(f.conn, "ROLLBACK");
    assert_ok(enqueue(&f, f.conn, "idempotency_key", "d", &second, &created));
    assert_true(created && second != first);
    end(&f);
}

/* A thread that enqueues one job on a connection of its own. */
typedef struct producer {
    fixture *f;
    PGconn *conn;
    const char *field, *text;
    int64_t id;
    bool created;
    mr_error *error;
    _Atomic bool done;
} producer;

static void *produce(void *user)
{
    producer *p = user;
    p->error = enqueue(p->f, p->conn, p->field, p->text, &p->id, &p->created);
    p->done = true;
    return NULL;
}

/* Until the connection's session waits for a lock. */
static void await_lock(const fixture *f, PGconn *waiter)
{
    char sql[160];
    (void)snprintf(sql, sizeof(sql),
                   "SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND wait_event_type ="
                   " 'Lock'",
                   PQbackendPID(waiter));
    for (int i = 0; i < 2000; i++) {
        run(f->conn, "SELECT pg_stat_clear_snapshot()");
        if (number(f->conn, sql) == 1)
            return;
        (void)usleep(5000);
    }
    fail_msg("the session does not wait");
}

/* While a producer has not committed, another one of the same key, or of the same idempotency key,
 * waits. `commit` decides what it finds. */
static void two_producers(fixture *f, const scratch *s, const char *field, bool commit, producer *p,
                          int64_t *first)
{
    bool created = false;
    *p = (producer){.f = f, .conn = scratch_connect(s), .field = field, .text = "k"};
    run(f->conn, "BEGIN");
    assert_ok(enqueue(f, f->conn, field, "k", first, &created));
    assert_true(created);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, produce, p), 0);
    await_lock(f, p->conn);
    assert_false(p->done);
    run(f->conn, commit ? "COMMIT" : "ROLLBACK");
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_ok(p->error);
    PQfinish(p->conn);
}

static void concurrent_same_idempotency_key(void **state)
{
    fixture f;
    begin(state, &f);
    producer p;
    int64_t first = 0;
    two_producers(&f, *state, "idempotency_key", true, &p, &first);
    assert_false(p.created);
    assert_int_equal(p.id, first);
    assert_int_equal(jobs(&f), 1);
    run(f.conn, "DELETE FROM " JOBS "; DELETE FROM millrace.job_idempotency");
    two_producers(&f, *state, "idempotency_key", false, &p, &first);
    assert_true(p.created);
    assert_int_equal(jobs(&f), 1);
    end(&f);
}

/* Ids of a key follow the commits, not the calls. */
static void concurrent_same_key(void **state)
{
    fixture f;
    begin(state, &f);
    producer p;
    int64_t first = 0;
    two_producers(&f, *state, "key", true, &p, &first);
    assert_true(p.id > first);
    assert_string_equal(value(f.conn, "SELECT string_agg(standing, ',' ORDER BY id) FROM " JOBS),
                        "ready,blocked");
    run(f.conn, "DELETE FROM " JOBS);
    two_producers(&f, *state, "key", false, &p, &first);
    assert_string_equal(value(f.conn, "SELECT string_agg(standing, ',' ORDER BY id) FROM " JOBS),
                        "ready");
    end(&f);
}

/* A snapshot from before the other's commit: refused, and worth another try. */
static void repeatable_read(void **state)
{
    fixture f;
    begin(state, &f);
    PGconn *other = scratch_connect(*state);
    for (int i = 0; i < 2; i++) {
        const char *field = i == 0 ? "key" : "idempotency_key";
        run(f.conn, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1");
        assert_ok(enqueue(&f, other, field, "k", NULL, NULL));
        mr_error *error = enqueue(&f, f.conn, field, "k", NULL, NULL);
        assert_int_equal(mr_error_code(error), MR_E_DB);
        assert_true(mr_error_retryable(error));
        mr_error_free(error);
        run(f.conn, "ROLLBACK");
    }
    PQfinish(other);
    assert_int_equal(jobs(&f), 2);
    end(&f);
}

static void callers_transaction(void **state)
{
    fixture f;
    begin(state, &f);
    run(f.conn, "CREATE TABLE mine (n int); BEGIN; INSERT INTO mine VALUES (1)");
    assert_ok(enqueue(&f, f.conn, "key", "a", NULL, NULL));
    assert_error(enqueue(&f, f.conn, "run_at", "nonsense", NULL, NULL), MR_E_DB, "nonsense");
    assert_int_equal(PQtransactionStatus(f.conn), PQTRANS_INTRANS);
    assert_ok(enqueue(&f, f.conn, "key", "a", NULL, NULL));
    run(f.conn, "INSERT INTO mine VALUES (2); COMMIT");
    assert_int_equal(jobs(&f), 2);
    assert_int_equal(number(f.conn, "SELECT count(*) FROM mine"), 2);
    run(f.conn, "BEGIN");
    fill(&f, 2500, 0, "");
    assert_ok(mr_enqueue_many(f.conn, f.conf, "mail", f.draft));
    run(f.conn, "ROLLBACK");
    assert_int_equal(jobs(&f), 2);
    /* The last piece fails: nothing of the others stays, the transaction does. */
    run(f.conn, "BEGIN");
    assert_ok(mr_job_draft_field(f.draft, "run_at", "nonsense"));
    assert_error(mr_enqueue_many(f.conn, f.conf, "mail", f.draft), MR_E_DB, "job 2500: ");
    assert_ok(enqueue(&f, f.conn, NULL, NULL, NULL, NULL));
    run(f.conn, "COMMIT");
    assert_int_equal(jobs(&f), 3);
    /* The same in a transaction of its own, which is over afterwards. */
    assert_error(mr_enqueue_many(f.conn, f.conf, "mail", f.draft), MR_E_DB, "job 2500: ");
    assert_int_equal(PQtransactionStatus(f.conn), PQTRANS_IDLE);
    assert_int_equal(PQpipelineStatus(f.conn), PQ_PIPELINE_OFF);
    assert_int_equal(mr_job_draft_id(f.draft, 0), 0);
    assert_int_equal(jobs(&f), 3);
    end(&f);
}

static void many_in_order(void **state)
{
    enum { COUNT = 10500 };
    fixture f;
    begin(state, &f);
    fill(&f, COUNT, 7, "k");
    assert_ok(mr_enqueue_many(f.conn, f.conf, "mail", f.draft));
    for (size_t i = 1; i < COUNT; i++)
        assert_true(mr_job_draft_id(f.draft, i) > mr_job_draft_id(f.draft, i - 1));
    assert_int_equal(number(f.conn, "SELECT count(*) FROM (SELECT (payload->>'n')::int AS n,"
                                    " row_number() OVER (ORDER BY id) - 1 AS r FROM " JOBS
                                    ") x WHERE n = r"),
                     COUNT);
    assert_int_equal(number(f.conn, "SELECT count(*) FROM " JOBS " WHERE standing = 'ready'"), 7);
    assert_int_equal(number(f.conn, "SELECT count(*) FROM " JOBS " WHERE standing = 'blocked'"),
                     COUNT - 7);
    /* Pieces by size too. */
    enum { LARGE = 3 << 20 };
    char *large = malloc(LARGE + 1);
    memset(large, 'x', LARGE);
    large[0] = large[LARGE - 1] = '"';
    large[LARGE] = '\0';
    mr_job_draft_clear(f.draft);
    for (int i = 0; i < 8; i++)
        assert_ok(mr_job_draft_add(f.draft, large));
    free(large);
    assert_int_equal(mr__enqueue_chunk(f.draft, 0), 2);
    assert_ok(mr_enqueue_many(f.conn, f.conf, "large", f.draft));
    assert_int_equal(
        number(f.conn, "SELECT count(DISTINCT id) FROM " JOBS " WHERE queue = 'large'"), 8);
    end(&f);
}

/* More keys than the server should be asked to lock one by one. */
static void many_keys(void **state)
{
    fixture f;
    begin(state, &f);
    fill(&f, 3000, 2500, "k");
    run(f.conn, "BEGIN");
    assert_ok(mr_enqueue_many(f.conn, f.conf, "mail", f.draft));
    assert_true(number(f.conn, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid ="
                               " pg_backend_pid()") <= 1024);
    /* Producers of single keys wait for it all the same. */
    producer p = {.f = &f, .conn = scratch_connect(*state), .field = "key", .text = "k77"};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, produce, &p), 0);
    await_lock(&f, p.conn);
    run(f.conn, "COMMIT");
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_ok(p.error);
    assert_true(p.id > mr_job_draft_id(f.draft, 2999));
    PQfinish(p.conn);
    assert_int_equal(number(f.conn, "SELECT count(*) FROM " JOBS " WHERE standing = 'ready'"),
                     2500);
    end(&f);
}

/* Bulk producers with the same keys in another order, piece by piece: none waits for ever. */
typedef struct bulk {
    fixture f;
    mr_error *error;
} bulk;

static void *produce_many(void *user)
{
    bulk *b = user;
    for (int i = 0; b->error == NULL && i < 4; i++)
        b->error = mr_enqueue_many(b->f.conn, b->f.conf, "mail", b->f.draft);
    return NULL;
}

static void concurrent_pieces(void **state)
{
    enum { BULKS = 4, COUNT = 2400, KEYS = 60 };
    fixture f;
    begin(state, &f);
    bulk bulks[BULKS];
    pthread_t threads[BULKS];
    for (int b = 0; b < BULKS; b++) {
        bulks[b] = (bulk){.f = {.conn = scratch_connect(*state), .conf = f.conf}};
        bulks[b].f.draft = mr_job_draft_new();
        for (int i = 0; i < COUNT; i++) {
            char key[16];
            int place = b % 2 == 0 ? i : COUNT - 1 - i;
            (void)snprintf(key, sizeof(key), "k%d", place / (COUNT / KEYS));
            assert_ok(mr_job_draft_add(bulks[b].f.draft, "{}"));
            assert_ok(mr_job_draft_field(bulks[b].f.draft, "key", key));
        }
    }
    for (int b = 0; b < BULKS; b++)
        assert_int_equal(pthread_create(&threads[b], NULL, produce_many, &bulks[b]), 0);
    for (int b = 0; b < BULKS; b++) {
        assert_int_equal(pthread_join(threads[b], NULL), 0);
        assert_ok(bulks[b].error);
        PQfinish(bulks[b].f.conn);
        mr_job_draft_free(bulks[b].f.draft);
    }
    assert_int_equal(jobs(&f), BULKS * 4 * COUNT);
    assert_int_equal(number(f.conn, "SELECT count(*) FROM " JOBS " WHERE standing = 'ready'"),
                     KEYS);
    end(&f);
}

static void lost_connection(void **state)
{
    fixture f;
    begin(state, &f);
    PGconn *other = scratch_connect(*state);
    char sql[64];
    (void)snprintf(sql, sizeof(sql), "SELECT pg_terminate_backend(%d)", PQbackendPID(other));
    run(f.conn, sql);
    assert_error(enqueue(&f, other, NULL, NULL, NULL, NULL), MR_E_CONNECT, "not known");
    assert_error(enqueue(&f, other, NULL, NULL, NULL, NULL), MR_E_CONNECT, "");
    PQfinish(other);
    other = scratch_connect(*state);
    (void)snprintf(sql, sizeof(sql), "SELECT pg_terminate_backend(%d)", PQbackendPID(other));
    run(f.conn, sql);
    fill(&f, 20000, 3, "k");
    assert_error(mr_enqueue_many(other, f.conf, "mail", f.draft), MR_E_CONNECT, "");
    PQfinish(other);
    assert_int_equal(jobs(&f), 0);
    end(&f);
}

static void nonblocking_connection(void **state)
{
    fixture f;
    begin(state, &f);
    assert_int_equal(PQsetnonblocking(f.conn, 1), 0);
    fill(&f, 12000, 0, "");
    assert_ok(mr_enqueue_many(f.conn, f.conf, "mail", f.draft));
    assert_int_equal(PQsetnonblocking(f.conn, 0), 0);
    assert_int_equal(jobs(&f), 12000);
    end(&f);
}

static int heard(PGconn *listener)
{
    int count = 0;
    PGnotify *n;
    run(listener, "SELECT 1");
    while ((n = PQnotifies(listener)) != NULL) {
        assert_string_equal(n->extra, "queue:mail");
        PQfreemem(n);
        count++;
    }
    return count;
}

static void wake_ups(void **state)
{
    fixture f;
    begin(state, &f);
    PGconn *listener = scratch_connect(*state);
    mr_names names;
    char channel[MR_CHANNEL_MAX], sql[64];
    assert_ok(mr__names_init(&names, "millrace"));
    assert_ok(mr__names_channel(&names, channel));
    (void)snprintf(sql, sizeof(sql), "LISTEN %s", channel);
    run(listener, sql);
    assert_ok(enqueue(&f, f.conn, NULL, NULL, NULL, NULL));
    assert_int_equal(heard(listener), 0); /* not by itself */
    assert_ok(mr_queue_wake(f.conn, f.conf, "mail"));
    int64_t began = mr__clock_now(&mr__clock_system), sent = 1;
    for (; sent < 100; sent++)
        assert_ok(mr_queue_wake(f.conn, f.conf, "mail"));
    int64_t took = mr__clock_now(&mr__clock_system) - began;
    int count = heard(listener);
    assert_in_range(count, 1, 2 + took / MR_WAKE_EVERY);
    (void)usleep(MR_WAKE_EVERY);
    assert_ok(mr_queue_wake(f.conn, f.conf, "mail"));
    assert_int_equal(heard(listener), 1);
    assert_error(mr_queue_wake(f.conn, f.conf, ""), MR_E_USAGE, "1 to 255");
    run(f.conn, "BEGIN");
    assert_error(mr_queue_wake(f.conn, f.conf, "mail"), MR_E_USAGE, "after the commit");
    run(f.conn, "ROLLBACK; SELECT millrace.wake_queue('mail')");
    assert_int_equal(heard(listener), 1);
    /* One that could not be sent does not count. */
    run(f.conn, "ALTER FUNCTION millrace.wake_queue RENAME TO gone");
    assert_error(mr_queue_wake(f.conn, f.conf, "post"), MR_E_DB, "wake_queue");
    assert_error(mr_queue_wake(f.conn, f.conf, "post"), MR_E_DB, "wake_queue");
    PQfinish(listener);
    end(&f);
}

static void wake_payloads(void **state)
{
    (void)state;
    char payload[400];
    (void)snprintf(payload, sizeof(payload), "queue:%0*d", MR_QUEUE_NAME_MAX, 7);
    assert_non_null(mr__wake_queue(payload));
    (void)snprintf(payload, sizeof(payload), "queue:%0*d", MR_QUEUE_NAME_MAX + 1, 7);
    assert_null(mr__wake_queue(payload));
    assert_null(mr__wake_queue(""));
    assert_null(mr__wake_queue("queue:"));
    assert_null(mr__wake_queue("Queue:x"));
    assert_null(mr__wake_queue("17"));
    assert_string_equal(mr__wake_queue("queue:a:b"), "a:b");
    assert_true(mr__wake_due(1, 1000000));
    assert_false(mr__wake_due(1, 1000000 + MR_WAKE_EVERY - 1));
    assert_true(mr__wake_due(2, 1000000));
    assert_true(mr__wake_due(1, 1000000 + MR_WAKE_EVERY));
    mr__wake_undo(1);
    assert_true(mr__wake_due(1, 1000000 + MR_WAKE_EVERY));
    assert_true(mr__wake_due(1 + 256, 1000000 + MR_WAKE_EVERY)); /* the same slot */
    assert_true(mr__wake_due(1, 1000000 + MR_WAKE_EVERY));
}

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        TEST(all_fields),
        TEST(wrong_values),
        TEST(idempotency),
        TEST(concurrent_same_idempotency_key),
        TEST(concurrent_same_key),
        TEST(repeatable_read),
        TEST(callers_transaction),
        TEST(many_in_order),
        TEST(many_keys),
        TEST(concurrent_pieces),
        TEST(lost_connection),
        TEST(nonblocking_connection),
        TEST(wake_ups),
        cmocka_unit_test(wake_payloads),
    };
    return cmocka_run_group_tests_name("enqueue", tests, NULL, NULL);
}
