/* Jobs in child processes: answers of every kind, children that hang, die, write nonsense or are
 * told to give up; and jobs from a shared object. Runs under ThreadSanitizer too. */
#include "job_fixture.h"

#include "base/list.h"
#include "handler/handler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LONG = 60000000 };

static void handler_of(job_test *t, const char *program, const char *option, const char *script)
{
    MR_AUTO_BUF command = {0};
    mr__list_add(&command, program);
    mr__list_add(&command, option);
    mr__list_add(&command, script);
    mr__job_handler_free(t->handler);
    t->handler = NULL;
    assert_ok(mr__job_handler_exec("work", mr__buf_text(&command), &t->logger, &t->handler));
}

/* A python3 handler: `body` sees the line j, of a job the values v, and answers by say(). */
static void python(job_test *t, const char *body)
{
    MR_AUTO_BUF script = {0};
    mr__buf_puts(&script, "import json, os, signal, sys, time\n"
                          "def say(**a): print(json.dumps(a), flush=True)\n"
                          "def out(t): sys.stdout.write(t); sys.stdout.flush()\n"
                          "n = 0\n"
                          "while True:\n"
                          "    line = sys.stdin.readline()\n"
                          "    if not line: break\n"
                          "    j = json.loads(line); v = j.get('job'); n += 1\n");
    mr__buf_puts(&script, body);
    handler_of(t, "python3", "-c", mr__buf_text(&script));
}

static const char *answers(job_test *t, int id)
{
    job_claim(t, id, LONG);
    return job_run(t);
}

static bool said(job_test *t, const char *text)
{
    (void)pthread_mutex_lock(&t->lock);
    bool found = strstr(mr__buf_text(&t->said), text) != NULL;
    (void)pthread_mutex_unlock(&t->lock);
    return found;
}

static void assert_row(const char *row_now, const char *text)
{
    if (strstr(row_now, text) == NULL)
        fail_msg("%s: no '%s'", row_now, text);
}

/* ---- Answers ------------------------------------------------------------------------------- */

static void good_answers(void **state)
{
    job_test t;
    job_begin(state, &t);
    rows(&t.q, "id, payload, data", "(4, E'it''s\n\"', '{\"n\": [1.50, null]}')");
    python(&t, "    i = int(j['id'])\n"
               "    if i == 1: say(ok=True, id=j['id'])\n"
               "    if i == 2: say(ok=True, sql=[{'text': 'INSERT INTO effects VALUES ($1)',"
               " 'params': [n]}], id=i)\n"
               "    if i == 3: say(error='no mail', retry=False)\n"
               "    if i == 4: say(error=json.dumps([j['queue'], j['type'], v['payload'],"
               " v['data'], v['at'], v['id'], os.environ['MILLRACE_QUEUE'],"
               " os.environ['MILLRACE_PROTOCOL']]))\n"
               "    if i == 5: say(snooze='1h', sql=[{'text': 'INSERT INTO effects VALUES (5)'}])\n"
               "    if i == 6: say(requeue='0')\n"
               "    if i == 7:\n"
               "        say(log='half', level='warn', entry={'done': 50}); say(log='plain')\n"
               "        print('on stderr', file=sys.stderr, flush=True)\n"
               "        say(ok=True)\n"
               "    if i == 8: say(error='stop', fatal=True)\n");
    assert_ok(t.handler->check(t.handler, t.q.conn));
    assert_string_equal(answers(&t, 1), "completed|0");
    assert_int_equal(t.opens, 0);
    assert_string_equal(answers(&t, 2), "completed|0");
    assert_true(t.job.written);
    assert_int_equal(number(t.q.conn, "SELECT n FROM effects"), 2); /* the same child */
    assert_string_equal(answers(&t, 3), "failed|1|no mail");
    assert_string_equal(answers(&t, 4),
                        "errored|1|[\"work\", \"job\", \"it's\\n\\\"\", {\"n\": [1.5, null]}, null,"
                        " \"4\", \"work\", \"1\"]");
    assert_string_equal(answers(&t, 5), "queued|0");
    assert_string_equal(row(&t.q, 5, "process_after > now() + '59 min'"), "t");
    assert_int_equal(effects(&t), 2);
    assert_string_equal(answers(&t, 6), "queued|0");
    assert_string_equal(answers(&t, 7), "completed|0");
    assert_string_equal(row(&t.q, 7, "array_to_json(execution_logs)"), "[{\"done\":50}]");
    assert_true(said(&t, "queue=work"));
    assert_true(said(&t, "line=half"));
    assert_true(said(&t, "line=plain"));
    assert_string_equal(answers(&t, 8), "queued|0");
    assert_int_equal(mr_error_code(t.job.trouble), MR_E_FATAL);
    job_end(&t);
}

static void sql_that_fails(void **state)
{
    job_test t;
    job_begin(state, &t);
    python(&t, "    say(ok=True, sql=[{'text': 'INSERT INTO effects VALUES (1)'},"
               " {'text': ['SELECT 1/0', 'SELECT * FROM nowhere', 'COMMIT'][n - 1]}])\n");
    assert_row(answers(&t, 1), "failed|1|division by zero");
    assert_row(answers(&t, 2), "errored|1|relation \"nowhere\"");
    assert_row(answers(&t, 3), "failed|1|the handler sent 'commit'");
    assert_int_equal(effects(&t), 0);
    job_end(&t);
}

/* ---- Children that misbehave --------------------------------------------------------------- */

static void misbehaviour(void **state)
{
    job_test t;
    job_begin(state, &t);
    python(&t, "    i = int(j['id'])\n"
               "    if i == 1: out('nonsense\\n')\n"
               "    elif i == 2: say(ok=True, id='77')\n"
               "    elif i == 3: print('oh no', file=sys.stderr); sys.exit(3)\n"
               "    elif i == 4: os.kill(os.getpid(), signal.SIGKILL)\n"
               "    elif i == 5: say(ok=True); say(ok=True)\n"
               "    else: say(ok=True)\n");
    assert_row(answers(&t, 1),
               "errored|1|python3 -c import json"); /* which program, and then what */
    assert_row(t.job.message,
               "wrote a line that is no answer (it is not JSON) where that to job 1 was due: "
               "\"nonsense\"");
    assert_row(answers(&t, 2), "answered out of order: job 77 where job 2 was due");
    /* It had read the job: that one is to blame, even if no child has ever answered well. */
    assert_row(answers(&t, 3),
               "exited with status 3 before it answered job 3; it said last: oh no");
    assert_row(answers(&t, 4), "was killed by signal 9");
    assert_row(answers(&t, 5), "completed|0");
    /* What a child says unasked is not held against the next job; it may come at any time. */
    struct timespec time = {.tv_nsec = 200000000};
    (void)nanosleep(&time, NULL);
    if (strcmp(answers(&t, 6), "completed|0") != 0) {
        assert_int_equal(t.job.outcome.kind, MR_OUTCOME_RELEASE);
        assert_row(mr_error_message(t.job.trouble), "out of order");
        assert_string_equal(answers(&t, 6), "completed|0");
    }
    job_end(&t);
}

/* That nothing can be started, or ends without a look at its job, is no job's fault. */
static void no_child(void **state)
{
    job_test t;
    job_begin(state, &t);
    handler_of(&t, "/no/such/program", "-c", "x");
    assert_error(t.handler->check(t.handler, t.q.conn), MR_E_CONFIG, "/no/such/program");
    assert_string_equal(answers(&t, 1), "queued|0");
    assert_int_equal(mr_error_code(t.job.trouble), MR_E_IO);
    handler_of(&t, "sh", "-c", "echo no module named shop >&2; exit 1");
    for (int i = 0; i < 2; i++) {
        assert_string_equal(answers(&t, 2), "queued|0");
        assert_int_equal(mr_error_code(t.job.trouble), MR_E_IO);
        assert_row(mr_error_message(t.job.trouble), "no module named shop");
    }
    handler_of(&t, "sh", "-c", "read line; exit 1");
    assert_row(answers(&t, 3), "errored|1|");
    job_end(&t);
}

/* ---- Giving up ----------------------------------------------------------------------------- */

static int64_t now_ms(void)
{
    return mr__clock_now(&mr__clock_system) / 1000;
}

static void hangs(void **state)
{
    job_test t;
    job_begin(state, &t);
    python(&t, "    if j['id'] == '1': time.sleep(60)\n"
               "    say(ok=True)\n");
    job_claim(&t, 1, 300000);
    int64_t began = now_ms();
    assert_string_equal(job_run(&t), "errored|1|exceeded the maximum runtime of 300ms");
    assert_true(now_ms() - began >= 2000 && now_ms() - began < 8000);
    assert_string_equal(answers(&t, 2), "completed|0");
    job_end(&t);
}

/* Asks the job to stop after a moment, as the loop's thread does. */
typedef struct stopper {
    mr_job *job;
    mr_job_stop stop;
} stopper;

static void *stop_soon(void *user)
{
    stopper *s = user;
    struct timespec time = {.tv_nsec = 300000000};
    (void)nanosleep(&time, NULL);
    atomic_store(&s->job->stop, s->stop);
    return NULL;
}

static const char *stopped(job_test *t, int id, mr_job_stop stop)
{
    job_claim(t, id, LONG);
    stopper s = {.job = &t->job, .stop = stop};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, stop_soon, &s), 0);
    const char *now = job_run(t);
    (void)pthread_join(thread, NULL);
    return now;
}

static void told_to_give_up(void **state)
{
    job_test t;
    job_begin(state, &t);
    /* Waits for the cancel line, and lives on. */
    python(&t, "    if j['type'] == 'cancel': continue\n"
               "    if n > 100: say(ok=True); continue\n"
               "    c = json.loads(sys.stdin.readline()); n += 100\n"
               "    assert c['type'] == 'cancel' and c['id'] == j['id'] and v is not None\n"
               "    say(error='gave up: ' + c['reason'] + ' %d' % os.getpid())\n");
    assert_row(stopped(&t, 1, MR_STOP_CANCEL), "canceled|0|gave up: canceled ");
    char first[64];
    (void)snprintf(first, sizeof(first), "%s", t.job.message);
    assert_string_equal(answers(&t, 2), "completed|0"); /* the same child, as n tells */
    python(&t, "    if j['type'] == 'cancel': continue\n"
               "    c = json.loads(sys.stdin.readline())\n"
               "    say(error='gave up: ' + c['reason'])\n");
    assert_string_equal(stopped(&t, 3, MR_STOP_WORKER), "queued|0");
    assert_null(t.job.trouble);
    assert_string_equal(stopped(&t, 4, MR_STOP_LOST), "processing|0");
    assert_null(t.job.outcome.id);
    job_claim(&t, 5, 200000);
    assert_string_equal(
        job_run(&t),
        "errored|1|exceeded the maximum runtime of 200ms; the handler said: gave up: max_runtime");
    /* It finished nevertheless. */
    python(&t, "    if j['type'] == 'job': time.sleep(0.8); say(ok=True)\n");
    assert_string_equal(stopped(&t, 6, MR_STOP_CANCEL), "completed|0");
    assert_string_equal(answers(&t, 7), "completed|0");
    job_end(&t);
}

/* A child that knows nothing of cancel lines takes one for a job: not the next job's fault. */
static void naive_child(void **state)
{
    job_test t;
    job_begin(state, &t);
    python(&t, "    time.sleep(0.8 if j['id'] == '1' else 0); say(ok=True)\n");
    assert_string_equal(stopped(&t, 1, MR_STOP_CANCEL), "completed|0");
    for (int i = 0; strcmp(answers(&t, 2), "completed|0") != 0; i++) {
        assert_true(i < 3);
        assert_string_equal(row(&t.q, 2, "state, num_failures"), "queued|0");
    }
    job_end(&t);
}

/* ---- Many at once -------------------------------------------------------------------------- */

enum { THREADS = 4, EACH = 25 };

typedef struct runner {
    job_test *t;
    mr_jobs *jobs;
    size_t first;
    int good;
} runner;

static mr_error *no_session(void *user, mr_session **session)
{
    (void)user;
    (void)session;
    return mr_error_new(MR_E_CONNECT, true, "none");
}

static void *run_many(void *user)
{
    runner *r = user;
    for (size_t i = 0; i < EACH; i++) {
        mr_job job = {.store = r->t->q.store,
                      .worker = "me",
                      .jobs = mr__jobs_ref(r->jobs),
                      .row = mr__jobs_at(r->jobs, r->first + i),
                      .handler = r->t->handler,
                      .logger = &r->t->logger,
                      .clock = &mr__clock_system,
                      .max_runtime = LONG};
        mr__job_run(&job, no_session, NULL);
        r->good += job.outcome.kind == MR_OUTCOME_COMPLETE && job.outcome.id != NULL;
        mr__job_clear(&job);
    }
    return NULL;
}

static void many_at_once(void **state)
{
    job_test t;
    job_begin(state, &t);
    run(t.q.conn, "INSERT INTO work (id) SELECT generate_series(1, 100)");
    python(&t, "    say(log='at ' + j['id']); say(ok=True, id=j['id'])\n");
    mr_jobs *jobs = claim(&t.q, THREADS * EACH);
    assert_int_equal(mr__jobs_count(jobs), THREADS * EACH);
    runner runners[THREADS];
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        runners[i] = (runner){.t = &t, .jobs = jobs, .first = i * EACH};
        assert_int_equal(pthread_create(&threads[i], NULL, run_many, &runners[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        (void)pthread_join(threads[i], NULL);
        assert_int_equal(runners[i].good, EACH);
    }
    mr__jobs_unref(jobs);
    job_end(&t);
}

/* ---- Shared objects ------------------------------------------------------------------------ */

static void plugins(void **state)
{
    job_test t;
    job_begin(state, &t);
    const char *path = getenv("MILLRACE_TEST_PLUGIN");
    if (path == NULL)
        skip();
    mr__job_handler_free(t.handler);
    t.handler = NULL;
    assert_ok(mr__job_handler_plugin("work", path, "job", &t.handler));
    assert_string_equal(answers(&t, 1), "completed|0");
    assert_int_equal(number(t.q.conn, "SELECT n FROM effects"), 1);
    assert_string_equal(answers(&t, 2), "failed|1|work wants odd ids");
    mr_job_handler *handler = NULL;
    assert_error(mr__job_handler_plugin("work", path, "event", &handler), MR_E_CONFIG,
                 "set a handler for events; for a queue it must call mr_plugin_on_job()");
    assert_error(mr__job_handler_plugin("work", path, "none", &handler), MR_E_CONFIG,
                 "set no handler; it must call mr_plugin_on_job()");
    mr_handler *consumers = NULL;
    assert_error(mr__handler_plugin("c", path, "job", &consumers), MR_E_CONFIG,
                 "set a handler for jobs; for a consumer it must call mr_plugin_on_event()");
    assert_error(mr__job_handler_plugin("work", path, "twice", &handler), MR_E_CONFIG,
                 "set a handler 2 times");
    assert_error(mr__job_handler_plugin("work", "./nowhere.so", "", &handler), MR_E_CONFIG,
                 "./nowhere.so");
    job_end(&t);
}

#define JOB_TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        JOB_TEST(good_answers), JOB_TEST(sql_that_fails), JOB_TEST(misbehaviour),
        JOB_TEST(no_child),     JOB_TEST(hangs),          JOB_TEST(told_to_give_up),
        JOB_TEST(naive_child),  JOB_TEST(many_at_once),   JOB_TEST(plugins),
    };
    return cmocka_run_group_tests_name("queue exec", tests, NULL, NULL);
}
