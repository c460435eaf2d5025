/* A job from its handler to its outcome: every ending, effects that come with it or not at all,
 * what is nobody's fault, hooks, the execution log. */
#include "job_fixture.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Handlers of the tests ----------------------------------------------------------------- */

static mr_error *nothing(mr_job *job, void *user)
{
    (void)job;
    (void)user;
    return NULL;
}

/* Returns the error it is given. */
static mr_error *returns(mr_job *job, void *user)
{
    (void)job;
    return user;
}

/* An effect, then the statement that it is given. */
static mr_error *writes(mr_job *job, void *user)
{
    mr_tx *tx = NULL, *same = NULL;
    mr_error *error = mr_job_tx(job, &tx);
    if (error == NULL)
        error = mr_job_tx(job, &same);
    if (error != NULL)
        return error;
    assert_ptr_equal(tx, same);
    error = mr_tx_exec(tx, "INSERT INTO effects VALUES (1)", 0, NULL);
    return error != NULL || user == NULL ? error : mr_tx_exec(tx, user, 0, NULL);
}

static mr_error *writes_and_fails(mr_job *job, void *user)
{
    mr_error *error = writes(job, NULL);
    return error != NULL ? error : user;
}

static mr_error *snoozes(mr_job *job, void *user)
{
    mr_job_requeue(job, 5);
    mr_job_snooze(job, 3600000);
    return user == NULL ? NULL : writes(job, NULL);
}

static mr_error *requeues(mr_job *job, void *user)
{
    mr_job_requeue(job, -5);
    return user == NULL ? NULL : writes(job, NULL);
}

/* Told to stop while it runs; then what `user` says. */
typedef struct told {
    mr_job_stop stop;
    bool tx;
    mr_error *error;
} told;

static mr_error *is_told(mr_job *job, void *user)
{
    told *t = user;
    assert_false(mr_job_cancelled(job));
    mr_error *error = t->tx ? writes(job, NULL) : NULL;
    atomic_store(&job->stop, t->stop);
    assert_true(mr_job_cancelled(job));
    return error != NULL ? error : t->error;
}

static void nap(int ms)
{
    struct timespec time = {.tv_nsec = ms * 1000000L};
    (void)nanosleep(&time, NULL);
}

/* ---- Endings without a transaction --------------------------------------------------------- */

static void plain_endings(void **state)
{
    job_test t;
    job_begin(state, &t);
    assert_string_equal(job_outcome(&t, 1, nothing, NULL), "completed|0");
    assert_string_equal(
        job_outcome(&t, 2, returns, mr_error_new(MR_E_HANDLER, true, "no \xC3mail")),
        "errored|1|no ?mail");
    assert_string_equal(job_outcome(&t, 3, returns, mr_error_new(MR_E_HANDLER, false, "never")),
                        "failed|1|never");
    assert_string_equal(job_outcome(&t, 4, returns, mr_error_new(MR_E_HANDLER, false, "%s", "")),
                        "failed|1|the handler gave no reason");
    /* A handler's own files and sockets are its own affair. */
    assert_string_equal(job_outcome(&t, 5, returns, mr_error_new(MR_E_IO, true, "no file")),
                        "errored|1|no file");
    assert_string_equal(job_outcome(&t, 6, returns, mr_error_new(MR_E_CONNECT, true, "its own")),
                        "errored|1|its own");
    assert_string_equal(job_outcome(&t, 7, snoozes, NULL), "queued|0");
    assert_string_equal(row(&t.q, 7, "process_after > now() + '59 min'"), "t");
    assert_string_equal(job_outcome(&t, 8, requeues, NULL), "queued|0");
    assert_string_equal(row(&t.q, 8, "process_after <= now()"), "t");
    assert_null(t.job.trouble);
    assert_int_equal(t.opens, 0); /* no connection for a handler that asks for none */
    job_end(&t);
}

static void long_messages_are_cut(void **state)
{
    job_test t;
    job_begin(state, &t);
    char text[20001];
    for (size_t i = 0; i < 20000; i += 2)
        memcpy(text + i, "\xC3\xA9", 2);
    memcpy(text, "xx", 2);
    text[1] = '\xC3';
    text[2] = '\xA9';
    text[3] = 'x';
    text[20000] = '\0';
    assert_string_not_equal(
        job_outcome(&t, 1, returns, mr_error_new(MR_E_HANDLER, true, "%s", text)), "");
    assert_true(number(t.q.conn, "SELECT octet_length(failure_message) FROM work") >= 8190);
    assert_true(number(t.q.conn, "SELECT octet_length(failure_message) FROM work") <= 8192);
    assert_int_equal(number(t.q.conn, "SELECT position('?' IN failure_message) FROM work"), 0);
    job_end(&t);
}

static void stopped(void **state)
{
    job_test t;
    job_begin(state, &t);
    told c = {.stop = MR_STOP_CANCEL, .error = mr_error_new(MR_E_CANCELLED, true, "gave up")};
    assert_string_equal(job_outcome(&t, 1, is_told, &c), "canceled|0|gave up");
    c = (told){.stop = MR_STOP_CANCEL};
    assert_string_equal(job_outcome(&t, 2, is_told, &c), "completed|0");
    c = (told){.stop = MR_STOP_WORKER, .error = mr_error_new(MR_E_HANDLER, false, "no time")};
    assert_string_equal(job_outcome(&t, 3, is_told, &c), "queued|0");
    assert_int_equal(t.job.outcome.kind, MR_OUTCOME_RELEASE);
    c = (told){.stop = MR_STOP_WORKER};
    assert_string_equal(job_outcome(&t, 4, is_told, &c), "completed|0");
    c = (told){.stop = MR_STOP_LOST};
    assert_string_equal(job_outcome(&t, 5, is_told, &c), "processing|0");
    assert_null(t.job.outcome.id);
    c = (told){.stop = MR_STOP_LOST, .error = mr_error_new(MR_E_HANDLER, false, "x")};
    assert_string_equal(job_outcome(&t, 6, is_told, &c), "processing|0");
    assert_null(t.job.outcome.id);
    /* With effects: they go where the outcome goes. */
    c = (told){.stop = MR_STOP_CANCEL, .tx = true};
    assert_string_equal(job_outcome(&t, 7, is_told, &c),
                        "canceled|0|the job was canceled while it ran");
    c = (told){.stop = MR_STOP_LOST, .tx = true};
    assert_string_equal(job_outcome(&t, 8, is_told, &c), "processing|0");
    c = (told){
        .stop = MR_STOP_WORKER, .tx = true, .error = mr_error_new(MR_E_CANCELLED, true, "x")};
    assert_string_equal(job_outcome(&t, 9, is_told, &c), "queued|0");
    /* Its statements are not waited for: the worker stops at once. */
    c = (told){.stop = MR_STOP_WORKER, .tx = true};
    assert_string_equal(job_outcome(&t, 10, is_told, &c), "queued|0");
    assert_int_equal(effects(&t), 0);
    job_end(&t);
}

/* ---- max_runtime --------------------------------------------------------------------------- */

static mr_error *waits(mr_job *job, void *user)
{
    while (!mr_job_cancelled(job))
        nap(2);
    return user;
}

static mr_error *sleeps_on_the_server(mr_job *job, void *user)
{
    mr_tx *tx = NULL;
    mr_error *error = mr_job_tx(job, &tx);
    PGresult *rows = NULL;
    if (error == NULL)
        error = mr_tx_query(tx, "SELECT pg_sleep(30)", 0, NULL, &rows);
    PQclear(rows);
    (void)user;
    return error;
}

static mr_error *late_transaction(mr_job *job, void *user)
{
    (void)waits(job, NULL);
    return writes(job, user);
}

static const char *limited(job_test *t, int id, int64_t limit, mr_job_fn function, void *user)
{
    job_callback(t, function, user);
    job_claim(t, id, limit);
    return job_run(t);
}

static void too_long(void **state)
{
    job_test t;
    job_begin(state, &t);
    static const char text[] = "errored|1|exceeded the maximum runtime of 10ms";
    assert_string_equal(
        limited(&t, 1, 10000, waits, mr_error_new(MR_E_CANCELLED, true, "stopping")), text);
    assert_string_equal(limited(&t, 2, 10000, waits, NULL), "completed|0");
    assert_string_equal(limited(&t, 3, 10000, waits, mr_error_new(MR_E_HANDLER, false, "bad")),
                        "errored|1|exceeded the maximum runtime of 10ms; the handler said: bad");
    assert_string_equal(limited(&t, 4, 10000, late_transaction, NULL), text);
    assert_string_equal(limited(&t, 5, 10000, sleeps_on_the_server, NULL), text);
    assert_true(mr__session_usable(t.session));
    told c = {.stop = MR_STOP_RUNTIME, .error = mr_error_new(MR_E_CANCELLED, true, "x")};
    assert_string_equal(limited(&t, 6, 90000000, is_told, &c),
                        "errored|1|exceeded the maximum runtime of 90s");
    assert_int_equal(effects(&t), 0);
    job_end(&t);
}

/* ---- With a transaction -------------------------------------------------------------------- */

static void effects_and_outcome(void **state)
{
    job_test t;
    job_begin(state, &t);
    assert_string_equal(job_outcome(&t, 1, writes, NULL), "completed|0");
    assert_true(t.job.written);
    assert_string_equal(job_outcome(&t, 2, snoozes, &t), "queued|0");
    assert_true(t.job.written);
    assert_string_equal(job_outcome(&t, 3, requeues, &t), "queued|0");
    assert_int_equal(effects(&t), 3);
    /* An error takes them with it. */
    assert_string_equal(
        job_outcome(&t, 4, writes_and_fails, mr_error_new(MR_E_HANDLER, true, "so")),
        "errored|1|so");
    /* The server's opinion comes before the handler's. */
    assert_non_null(
        strstr(job_outcome(&t, 5, writes, "SELECT 1 / 0"), "failed|1|division by zero"));
    assert_non_null(
        strstr(job_outcome(&t, 6, writes, "INSERT INTO effects VALUES (1000)"), "failed|1|"));
    assert_non_null(strstr(job_outcome(&t, 7, writes, "SELECT * FROM nowhere"),
                           "errored|1|relation \"nowhere\" does not exist"));
    assert_non_null(strstr(job_outcome(&t, 8, writes, "COMMIT"), "failed|1|the handler sent"));
    assert_int_equal(effects(&t), 3);
    /* The connection is as good as before. */
    assert_string_equal(job_outcome(&t, 9, writes, NULL), "completed|0");
    assert_int_equal(effects(&t), 4);
    job_end(&t);
}

/* Meanwhile the job was reset, and perhaps claimed by another. */
static mr_error *stale(mr_job *job, void *user)
{
    job_test *t = user;
    run(t->q.conn, "UPDATE work SET state = 'processing', worker_hostname = 'other',"
                   " lease_generation = lease_generation + 1");
    return writes(job, NULL);
}

static mr_error *stale_log(mr_job *job, void *user)
{
    job_test *t = user;
    run(t->q.conn, "UPDATE work SET lease_generation = lease_generation + 1");
    mr_error *error = mr_job_log(job, "{}", NULL);
    assert_int_equal(mr_error_code(error), MR_E_FENCED);
    assert_true(mr_job_cancelled(job));
    return error;
}

static void lost(void **state)
{
    job_test t;
    job_begin(state, &t);
    job_callback(&t, stale, &t);
    job_claim(&t, 1, -1);
    char before[512];
    job_only_run(&t);
    assert_null(t.job.outcome.id);
    assert_false(t.job.written);
    assert_null(t.job.trouble);
    (void)snprintf(before, sizeof(before), "%s", row(&t.q, 1, "state, worker_hostname"));
    assert_string_equal(before, "processing|other");
    assert_int_equal(effects(&t), 0);
    run(t.q.conn, "TRUNCATE work");
    job_callback(&t, stale_log, &t);
    job_claim(&t, 2, -1);
    job_only_run(&t);
    assert_null(t.job.outcome.id);
    job_end(&t);
}

/* ---- Nobody's fault ------------------------------------------------------------------------ */

static mr_error *cut(mr_job *job, void *user)
{
    job_test *t = user;
    mr_tx *tx = NULL;
    PGresult *rows = NULL;
    mr_error *error = writes(job, NULL);
    if (error == NULL)
        error = mr_job_tx(job, &tx);
    if (error == NULL)
        error = mr_tx_query(tx, "SELECT pg_backend_pid()", 0, NULL, &rows);
    assert_null(error);
    char sql[80];
    (void)snprintf(sql, sizeof(sql), "SELECT pg_terminate_backend(%s, 5000)",
                   PQgetvalue(rows, 0, 0));
    PQclear(rows);
    run(t->q.conn, sql);
    return NULL;
}

static void released(job_test *t, const char *row_now, mr_code code)
{
    assert_string_equal(row_now, "queued|0");
    assert_int_equal(t->job.outcome.kind, MR_OUTCOME_RELEASE);
    assert_int_equal(mr_error_code(t->job.trouble), code);
}

static void nobodys_fault(void **state)
{
    job_test t;
    job_begin(state, &t);
    released(&t, job_outcome(&t, 1, cut, &t), MR_E_CONNECT);
    assert_int_equal(effects(&t), 0);
    assert_string_equal(job_outcome(&t, 1, writes, NULL), "completed|0");
    released(&t,
             job_outcome(&t, 2, writes,
                         "DO $$BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END$$"),
             MR_E_DB);
    released(&t,
             job_outcome(&t, 3, writes,
                         "DO $$BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40P01'; END$$"),
             MR_E_DB);
    t.refusal = mr_error_new(MR_E_CONNECT, true, "no server");
    released(&t, job_outcome(&t, 4, writes, NULL), MR_E_CONNECT);
    assert_int_equal(effects(&t), 1);
    /* The process must stop: the job is not to blame, and the worker hears of it. */
    released(&t, job_outcome(&t, 5, returns, mr_error_new(MR_E_FATAL, false, "stop")), MR_E_FATAL);
    /* The handler's own statement may raise anything, our fence's state too. */
    job_callback(&t, writes, "DO $$BEGIN RAISE EXCEPTION 'x' USING ERRCODE = 'MR010'; END$$");
    job_claim(&t, 6, -1);
    job_only_run(&t);
    assert_non_null(t.job.outcome.id);
    job_end(&t);
}

/* ---- Hooks --------------------------------------------------------------------------------- */

typedef struct trace {
    char steps[32];
    mr_error *before;
    mr_code after;
    mr_outcome_kind kind;
    bool written;
} trace;

static void step(trace *t, char c)
{
    size_t at = strlen(t->steps);
    t->steps[at] = c;
    t->steps[at + 1] = '\0';
}

static mr_error *before(mr_job *job, void *user)
{
    trace *t = user;
    assert_string_equal(mr_job_queue(job), "work");
    step(t, 'b');
    return t->before;
}

static mr_error *between(mr_job *job, void *user)
{
    step(user, 'h');
    return writes(job, NULL);
}

static void after(mr_job *job, const mr_error *error, void *user)
{
    trace *t = user;
    step(t, 'a');
    t->after = mr_error_code(error);
    t->kind = job->outcome.kind;
    t->written = job->written;
    mr_tx *tx = NULL;
    mr_error *refused = mr_job_tx(job, &tx);
    assert_int_equal(mr_error_code(refused), MR_E_STATE);
    mr_error_free(refused);
}

static void hooks(void **state)
{
    job_test t;
    job_begin(state, &t);
    trace seen = {0};
    t.job.hooks = (mr_job_hooks){.before = before, .after = after, .user = &seen};
    assert_string_equal(job_outcome(&t, 1, between, &seen), "completed|0");
    assert_string_equal(seen.steps, "bha");
    assert_int_equal(seen.after, MR_OK);
    assert_true(seen.written); /* it is called once the outcome is decided */
    seen = (trace){.before = mr_error_new(MR_E_HANDLER, false, "no budget")};
    assert_string_equal(job_outcome(&t, 2, between, &seen), "failed|1|no budget");
    assert_string_equal(seen.steps, "ba");
    assert_int_equal(seen.after, MR_E_HANDLER);
    assert_int_equal(seen.kind, MR_OUTCOME_FAIL);
    assert_int_equal(effects(&t), 1);
    /* Told to stop before it began: nothing is called. */
    seen = (trace){0};
    job_callback(&t, between, &seen);
    job_claim(&t, 3, -1);
    atomic_store(&t.job.stop, MR_STOP_WORKER);
    assert_string_equal(job_run(&t), "queued|0");
    assert_string_equal(seen.steps, "");
    job_end(&t);
}

/* ---- The execution log --------------------------------------------------------------------- */

static const char *log_of(job_test *t, int id)
{
    return row(&t->q, id, "array_to_json(execution_logs)");
}

static mr_error *logs(mr_job *job, void *user)
{
    job_test *t = user;
    int index = 0;
    assert_ok(mr_job_log(job, "{\"n\":1}", &index));
    assert_int_equal(index, 1);
    assert_string_equal(log_of(t, (int)strtol(mr_job_id(job), NULL, 10)), "[{\"n\":1}]");
    assert_ok(mr_job_log(job, "{\"n\":2}", &index));
    assert_int_equal(index, 2);
    assert_ok(mr_job_log_update(job, 1, "{\"n\":0}"));
    assert_string_equal(log_of(t, (int)strtol(mr_job_id(job), NULL, 10)), "[{\"n\":0},{\"n\":2}]");
    assert_error(mr_job_log_update(job, 3, "{}"), MR_E_USAGE, "no entry 3");
    assert_error(mr_job_log_update(job, 0, "{}"), MR_E_USAGE, "no entry 0");
    assert_error(mr_job_log(job, "{", NULL), MR_E_USAGE, "must be JSON");
    assert_error(mr_job_log(job, "\"\\u0000\"", NULL), MR_E_USAGE, "must be JSON");
    assert_error(mr_job_log(job, "\"\\ud800\"", NULL), MR_E_USAGE, "must be JSON");
    assert_ok(mr_job_log(job, "\"\\\\u0000 \\ud83d\\ude00\"", NULL));
    return NULL;
}

typedef struct log_plan {
    job_test *t;
    mr_error *error;
    const char *statement;
} log_plan;

static mr_error *logs_in_transaction(mr_job *job, void *user)
{
    log_plan *p = user;
    int id = (int)strtol(mr_job_id(job), NULL, 10), index = 0;
    assert_ok(mr_job_log(job, "1", &index));
    assert_ok(writes(job, (void *)(uintptr_t)p->statement));
    assert_ok(mr_job_log(job, "2", &index));
    assert_int_equal(index, 2);
    assert_ok(mr_job_log(job, "3", &index));
    assert_ok(mr_job_log_update(job, 2, "20"));
    assert_ok(mr_job_log_update(job, 1, "10"));
    assert_error(mr_job_log_update(job, 4, "4"), MR_E_USAGE, "no entry 4");
    assert_string_equal(log_of(p->t, id), "[1]");
    return p->error;
}

static void execution_log(void **state)
{
    job_test t;
    job_begin(state, &t);
    assert_string_equal(job_outcome(&t, 1, logs, &t), "completed|0");
    log_plan p = {.t = &t};
    assert_string_equal(job_outcome(&t, 2, logs_in_transaction, &p), "completed|0");
    assert_string_equal(log_of(&t, 2), "[10,20,3]");
    p.error = mr_error_new(MR_E_HANDLER, true, "no");
    assert_string_equal(job_outcome(&t, 3, logs_in_transaction, &p), "errored|1|no");
    assert_string_equal(log_of(&t, 3), "[10,20,3]");
    p = (log_plan){.t = &t, .statement = "SELECT 1 / 0"};
    assert_non_null(strstr(job_outcome(&t, 4, logs_in_transaction, &p), "division"));
    assert_string_equal(log_of(&t, 4), "[10,20,3]");
    assert_int_equal(effects(&t), 1);
    /* Not outside of its handling. */
    assert_error(mr_job_log(&t.job, "1", NULL), MR_E_STATE, "not being handled");
    job_end(&t);
}

/* ---- What a handler sees ------------------------------------------------------------------- */

static mr_error *looks(mr_job *job, void *user)
{
    (void)user;
    assert_string_equal(mr_job_id(job), "1");
    assert_string_equal(mr_job_value(job, "state"), "processing");
    assert_string_equal(mr_job_value(job, "payload"), "it's");
    assert_null(mr_job_value(job, "data"));
    assert_null(mr_job_value(job, "nonsense"));
    assert_true(mr_job_value_count(job) > 12);
    assert_string_equal(mr_job_value_name(job, 0), "id");
    assert_null(mr_job_value_name(job, mr_job_value_count(job)));
    return NULL;
}

static void values(void **state)
{
    job_test t;
    job_begin(state, &t);
    rows(&t.q, "id, payload", "(1, 'it''s')");
    assert_string_equal(job_outcome(&t, 1, looks, NULL), "completed|0");
    job_end(&t);
}

/* ---- What it says and hears while it runs -------------------------------------------------- */

typedef struct hearing {
    atomic_int calls;
    pthread_t thread;
    mr_job_stop stop; /* what the handler does to its own job */
    bool twice;
} hearing;

static void hears(mr_job *job, void *user)
{
    hearing *h = user;
    assert_true(mr_job_cancelled(job));
    h->thread = pthread_self();
    atomic_fetch_add(&h->calls, 1);
}

static mr_error *waits_for_word(mr_job *job, void *user)
{
    hearing *h = user;
    assert_ok(mr_job_on_cancel(job, hears, h));
    if (h->twice)
        assert_ok(mr_job_on_cancel(job, hears, h));
    nap(20);
    assert_int_equal(atomic_load(&h->calls), 0);
    if (h->stop == MR_STOP_NONE)
        return NULL;
    atomic_store(&job->stop, (int)h->stop);
    while (atomic_load(&h->calls) == 0)
        nap(2);
    return mr_error_new(MR_E_CANCELLED, true, "heard");
}

static void callback(void **state)
{
    job_test t;
    job_begin(state, &t);
    rows(&t.q, "id", "(1), (2), (3)");
    hearing h = {.stop = MR_STOP_CANCEL, .twice = true};
    assert_string_equal(job_outcome(&t, 1, waits_for_word, &h), "canceled|0|heard");
    assert_int_equal(atomic_load(&h.calls), 1);
    assert_false(pthread_equal(h.thread, pthread_self()));
    /* Never once the handler has returned. */
    h = (hearing){.stop = MR_STOP_NONE};
    assert_string_equal(job_outcome(&t, 2, waits_for_word, &h), "completed|0");
    nap(120);
    assert_int_equal(atomic_load(&h.calls), 0);
    assert_error(mr_job_on_cancel(&t.job, hears, &h), MR_E_STATE, "not being handled");
    /* max_runtime passes without anybody's word. */
    job_callback(&t, waits_for_word, &h);
    h = (hearing){.stop = MR_STOP_RUNTIME};
    job_claim(&t, 3, 60000);
    assert_string_equal(job_run(&t), "errored|1|exceeded the maximum runtime of 60ms");
    assert_int_equal(atomic_load(&h.calls), 1);
    job_end(&t);
}

static mr_error *says(mr_job *job, void *user)
{
    assert_ok(mr_job_progress(job, 10, "a"));
    assert_ok(mr_job_progress(job, 20, "b"));
    assert_error(mr_job_progress(job, 101, NULL), MR_E_USAGE, "0 to 100");
    assert_error(mr_job_progress(job, 5, "\xff"), MR_E_USAGE, "UTF-8");
    mr_job_word *word = mr__job_word_take(job);
    assert_int_equal(word->percent, 20);
    assert_string_equal(word->text, "b");
    free(word);
    assert_null(mr__job_word_take(job));
    assert_ok(mr_job_progress(job, 30, NULL)); /* nobody takes this one */
    (void)user;
    return NULL;
}

static void progress(void **state)
{
    job_test t;
    job_begin(state, &t);
    rows(&t.q, "id", "(1)");
    assert_string_equal(job_outcome(&t, 1, says, NULL), "completed|0");
    job_end(&t);
}

#define JOB_TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        JOB_TEST(plain_endings),
        JOB_TEST(long_messages_are_cut),
        JOB_TEST(stopped),
        JOB_TEST(too_long),
        JOB_TEST(effects_and_outcome),
        JOB_TEST(lost),
        JOB_TEST(nobodys_fault),
        JOB_TEST(hooks),
        JOB_TEST(execution_log),
        JOB_TEST(values),
        JOB_TEST(callback),
        JOB_TEST(progress),
    };
    return cmocka_run_group_tests_name("queue jobs", tests, NULL, NULL);
}
