/* Conversations with children: good ones, and every way to misbehave. Each failure names the event,
 * costs its batch only, and the next batch works with a new child. Runs under ThreadSanitizer too.
 */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "base/clock.h"
#include "base/list.h"
#include "handler/exec_talk.h"
#include "handler/handler.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EVENTS = 2000, SECOND = 1000000, LONG = 30 * SECOND };

static mr_event events[EVENTS];
static const mr_event *list[EVENTS];

/* What was logged, as one text. */
typedef struct record {
    pthread_mutex_t lock;
    mr_buf text;
} record;

static void keep_line(void *user, mr_level level, const char *line)
{
    record *r = user;
    (void)level;
    (void)pthread_mutex_lock(&r->lock);
    mr__buf_puts(&r->text, line);
    mr__buf_putc(&r->text, '\n');
    (void)pthread_mutex_unlock(&r->lock);
}

typedef struct fixture {
    record record;
    mr_logger logger;
    mr_handler *handler;
    char directory[32]; /* for what children leave behind */
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    (void)pthread_mutex_init(&f->record.lock, NULL);
    mr__logger_init(&f->logger, keep_line, &f->record, MR_INFO, false);
    (void)snprintf(f->directory, sizeof(f->directory), "/tmp/mr-exec-XXXXXX");
    assert_non_null(mkdtemp(f->directory));
    assert_int_equal(setenv("T", f->directory, 1), 0);
    for (size_t i = 0; i < EVENTS; i++) {
        events[i] = (mr_event){.position = (int64_t)i + 1,
                               .aggregate_version = 1,
                               .aggregate_type = "T",
                               .aggregate_id = "s",
                               .event_id = "",
                               .event_type = "E",
                               .payload = "{\"n\":1}",
                               .payload_length = 7};
        list[i] = &events[i];
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    mr__handler_free(f->handler);
    mr__logger_destroy(&f->logger);
    mr__buf_free(&f->record.text);
    pid_t pid = fork();
    if (pid == 0) {
        (void)execlp("rm", "rm", "-rf", f->directory, (char *)NULL);
        _exit(1);
    }
    (void)waitpid(pid, NULL, 0);
    free(f);
    return 0;
}

static void handler_of(fixture *f, const char *program, const char *option, const char *script)
{
    MR_AUTO_BUF command = {0};
    mr__list_add(&command, program);
    mr__list_add(&command, option);
    mr__list_add(&command, script);
    mr__handler_free(f->handler);
    f->handler = NULL;
    mr_error *error = mr__handler_exec("mailer", mr__buf_text(&command), &f->logger, &f->handler);
    if (error != NULL)
        fail_msg("%s", mr_error_message(error));
}

static void shell(fixture *f, const char *script)
{
    handler_of(f, "sh", "-c", script);
}

/* A python3 handler: `body` sees event e of number n and gives the answer by say(). */
static void python(fixture *f, const char *body)
{
    MR_AUTO_BUF script = {0};
    mr__buf_puts(&script, "import json, os, signal, sys, time\n"
                          "def say(**a): print(json.dumps(a), flush=True)\n"
                          "def out(t): sys.stdout.write(t); sys.stdout.flush()\n"
                          "T = os.environ['T']\n"
                          "def first(name):\n"
                          "    try: os.mkdir(T + '/' + name); return True\n"
                          "    except FileExistsError: return False\n"
                          "n = 0\n"
                          "for line in sys.stdin:\n"
                          "    e = json.loads(line); p = e['position']; n += 1\n");
    mr__buf_puts(&script, body);
    handler_of(f, "python3", "-c", mr__buf_text(&script));
}

static mr_run run_of(size_t count, int64_t timeout)
{
    return (mr_run){.events = list,
                    .count = count,
                    .to = (int64_t)count,
                    .consumer = "mailer",
                    .attempt = 1,
                    .deadline = mr__clock_now(&mr__clock_system) + timeout,
                    .clock = &mr__clock_system};
}

static void talks(fixture *f, size_t count)
{
    mr_run run = run_of(count, LONG);
    size_t good = 0;
    mr_answers *answers = NULL;
    mr_error *error = f->handler->talk(f->handler, &run, &good, NULL, &answers);
    if (error != NULL)
        fail_msg("%s", mr_error_message(error));
    assert_int_equal(good, count);
    f->handler->forget(answers);
}

static void fails_run(fixture *f, const mr_run *run, size_t wanted_good, mr_code code,
                      bool retryable, const char *const *words)
{
    size_t good = 12345;
    mr_answers *answers = NULL;
    mr_error *error = f->handler->talk(f->handler, run, &good, NULL, &answers);
    assert_non_null(error);
    for (size_t i = 0; words[i] != NULL; i++)
        if (strstr(mr_error_message(error), words[i]) == NULL)
            fail_msg("no '%s' in: %s", words[i], mr_error_message(error));
    assert_string_equal(mr_code_name(mr_error_code(error)), mr_code_name(code));
    assert_int_equal(mr_error_retryable(error), retryable);
    assert_int_equal(good, wanted_good);
    assert_int_equal(answers == NULL ? 0 : answers->count, good);
    mr_error_free(error);
    f->handler->forget(answers);
}

#define fails(f, count, good, code, retryable, ...)                                                \
    do {                                                                                           \
        mr_run fails_run_ = run_of((count), LONG);                                                 \
        const char *const fails_words_[] = {__VA_ARGS__, NULL};                                    \
        fails_run((f), &fails_run_, (good), (code), (retryable), fails_words_);                    \
    } while (0)

static bool logged(fixture *f, const char *text)
{
    (void)pthread_mutex_lock(&f->record.lock);
    bool found = f->record.text.data != NULL && strstr(f->record.text.data, text) != NULL;
    (void)pthread_mutex_unlock(&f->record.lock);
    return found;
}

static void wait_logged(fixture *f, const char *text)
{
    for (int64_t until = mr__clock_now(&mr__clock_system) + LONG; !logged(f, text); usleep(1000))
        if (mr__clock_now(&mr__clock_system) > until)
            fail_msg("never logged: %s", text);
}

static int started(fixture *f)
{
    int count = 0;
    (void)pthread_mutex_lock(&f->record.lock);
    for (const char *p = mr__buf_text(&f->record.text); (p = strstr(p, "handler started")) != NULL;
         p++)
        count++;
    (void)pthread_mutex_unlock(&f->record.lock);
    return count;
}

/* ---- Good ones ----------------------------------------------------------------------------- */

static void one_child_for_many_batches(void **state)
{
    fixture *f = *state;
    python(f, "    say(ok=True, position=p, pid=os.getpid())\n");
    talks(f, 1);
    talks(f, EVENTS);
    talks(f, 0);
    talks(f, 300);
    assert_int_equal(started(f), 1);
}

static void answers_carry_sql(void **state)
{
    fixture *f = *state;
    python(f, "    assert e['consumer'] == 'mailer' == os.environ['MILLRACE_CONSUMER']\n"
              "    assert os.environ['MILLRACE_PROTOCOL'] == '1' and e['attempt'] == 1\n"
              "    out('{\"ok\":true,\"sql\":[{\"text\":\"S\",\"params\":[%d,1.10]}]}\\n' % p)\n");
    mr_run run = run_of(3, LONG);
    size_t good = 0;
    mr_answers *answers = NULL;
    assert_null(f->handler->talk(f->handler, &run, &good, NULL, &answers));
    assert_int_equal(good, 3);
    assert_int_equal(answers->count, 3);
    assert_string_equal(answers->items[2].sql[0].params[0], "3");
    assert_string_equal(answers->items[2].sql[0].params[1], "1.10");
    f->handler->forget(answers);
}

static void large_events_and_answers(void **state)
{
    fixture *f = *state;
    enum { SIZE = 3 << 20 };
    char *payload = malloc(SIZE);
    assert_non_null(payload);
    memset(payload, 'x', SIZE);
    payload[0] = payload[SIZE - 1] = '"';
    for (size_t i = 0; i < 4; i++) {
        events[i].payload = payload;
        events[i].payload_length = SIZE;
    }
    python(f, "    assert len(e['data']) == 3 * 2**20 - 2\n"
              "    say(ok=True, sql=[{'text': 'S', 'params': [e['data']]}])\n");
    talks(f, 4);
    free(payload);
}

static void logs_and_stderr(void **state)
{
    fixture *f = *state;
    python(f,
           "    say(log='halfway', level='warn'); print('oops', p, file=sys.stderr, flush=True)\n"
           "    say(ok=True)\n");
    talks(f, 2);
    wait_logged(f, "level=warn msg=\"handler says\" consumer=mailer pid=");
    wait_logged(f, "line=halfway");
    wait_logged(f, "line=\"oops 2\"");
}

/* More on stderr than a pipe holds, between batches and with nobody asking. */
static void chatty_while_idle(void **state)
{
    fixture *f = *state;
    python(f, "    say(ok=True)\n"
              "    if n == 1:\n"
              "        for i in range(3000): print('x' * 100, file=sys.stderr)\n"
              "        say(log='still here')\n"
              "        print('done', file=sys.stderr, flush=True)\n");
    talks(f, 1);
    wait_logged(f, "line=done");
    wait_logged(f, "line=\"still here\"");
    talks(f, 1);
    assert_int_equal(started(f), 1);
}

static void an_idle_child_that_leaves(void **state)
{
    fixture *f = *state;
    python(f, "    say(ok=True); sys.exit(4)\n");
    talks(f, 1);
    wait_logged(f, "msg=\"handler ended between batches\"");
    wait_logged(f, "exited with status 4");
    talks(f, 1); /* a new one */
    assert_int_equal(started(f), 2);
}

/* ---- Refusals ------------------------------------------------------------------------------ */

static void refusals(void **state)
{
    fixture *f = *state;
    python(f, "    if p == 3: say(error='no such mailbox', retry=False)\n"
              "    elif p == 6: say(error='later')\n"
              "    else: say(ok=True, position=p)\n");
    fails(f, 10, 2, MR_E_HANDLER, false, "no such mailbox");
    mr_run run = run_of(7, LONG);
    run.events = list + 3;
    const char *const words[] = {"later", NULL};
    fails_run(f, &run, 2, MR_E_HANDLER, true, words);
    talks(f, 2);
    assert_int_equal(started(f), 1); /* it owed nothing, so it stays */
    python(f, "    say(error='the disk burns', fatal=True)\n");
    fails(f, 10, 0, MR_E_FATAL, false, "the disk burns");
}

/* After a refusal nothing more is given: few events after it were on their way. */
static void a_retry_goes_one_by_one(void **state)
{
    fixture *f = *state;
    python(f, "    open(T + '/seen', 'a').write('%d ' % p)\n"
              "    say(error='no') if p == 2 else say(ok=True)\n");
    mr_run run = run_of(100, LONG);
    run.attempt = 2;
    const char *const words[] = {"no", NULL};
    fails_run(f, &run, 1, MR_E_HANDLER, true, words);
    char path[64], seen[64] = "";
    (void)snprintf(path, sizeof(path), "%s/seen", f->directory);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(seen, sizeof(seen), file));
    (void)fclose(file);
    assert_string_equal(seen, "1 2 ");
}

/* ---- Without a transaction ----------------------------------------------------------------- */

static void deliveries(void **state)
{
    fixture *f = *state;
    python(f, "    say(ok=True, sql=[] if p != 4 else [{'text': 'S'}])\n");
    size_t good = 0;
    mr_run run = run_of(3, LONG);
    assert_null(f->handler->deliver(f->handler, &run, &good));
    assert_int_equal(good, 3);
    run.count = 10;
    mr_error *error = f->handler->deliver(f->handler, &run, &good);
    assert_int_equal(mr_error_code(error), MR_E_HANDLER);
    assert_false(mr_error_retryable(error));
    assert_non_null(strstr(mr_error_message(error), "detached"));
    assert_int_equal(good, 3);
    mr_error_free(error);
}

/* ---- Misbehaviour -------------------------------------------------------------------------- */

static void broken_starts(void **state)
{
    fixture *f = *state;
    shell(f, "echo 'no module named mail' >&2; exit 1");
    fails(f, 5, 0, MR_E_IO, true, "sh -c", "exited with status 1", "position 1",
          "it said last: no module named mail");
    handler_of(f, "no-such-program-anywhere", "a", "b");
    mr_error *error = f->handler->check(f->handler, NULL);
    assert_int_equal(mr_error_code(error), MR_E_CONFIG);
    assert_non_null(strstr(mr_error_message(error), "no-such-program-anywhere"));
    mr_error_free(error);
    fails(f, 5, 0, MR_E_IO, true, "no-such-program-anywhere");
}

static void crashes(void **state)
{
    fixture *f = *state;
    python(f, "    if p == 3 and first('crash'):\n"
              "        print('about to fall', file=sys.stderr, flush=True)\n"
              "        os.kill(os.getpid(), signal.SIGSEGV)\n"
              "    say(ok=True)\n");
    fails(f, 10, 2, MR_E_HANDLER, true, "killed by signal 11", "position 3", "about to fall");
    talks(f, 10);
    assert_int_equal(started(f), 2);
}

static void hangs(void **state)
{
    fixture *f = *state;
    python(f, "    if p == 3 and first('hang'): time.sleep(600)\n"
              "    say(ok=True)\n");
    talks(f, 1); /* python is up */
    mr_run run = run_of(10, SECOND);
    const char *const words[] = {"did not answer the event at position 3", "1s", "killed", NULL};
    fails_run(f, &run, 2, MR_E_TIMEOUT, true, words);
    talks(f, 10);
}

/* Whether the talk names the one that is to blame: it fails at event 3 of `count`. */
static bool sure_of(fixture *f, size_t count, int attempt)
{
    mr_run run = run_of(count, LONG);
    run.attempt = attempt;
    size_t good = 0;
    bool sure = false;
    mr_answers *answers = NULL;
    mr_error *error = f->handler->talk(f->handler, &run, &good, &sure, &answers);
    assert_non_null(error);
    mr_error_free(error);
    f->handler->forget(answers);
    assert_int_equal(good, 2);
    return sure;
}

static void who_fell_it(void **state)
{
    fixture *f = *state;
    python(f, "    if p == 3: os._exit(3)\n"
              "    say(ok=True)\n");
    talks(f, 1); /* python is up */
    assert_false(sure_of(f, 10, 1));
    assert_true(sure_of(f, 10, 2)); /* one at a time */
    assert_true(sure_of(f, 3, 1));  /* the last one: no other was under way */
}

static void who_was_refused(void **state)
{
    fixture *f = *state;
    python(f, "    say(error='no') if p == 3 else say(ok=True)\n");
    assert_true(sure_of(f, 10, 1));
}

/* It reads nothing and ignores every polite word. */
static void deaf_and_stubborn(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < EVENTS; i++) {
        events[i].payload = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
        events[i].payload_length = strlen(events[i].payload);
    }
    shell(f, "trap '' TERM INT HUP; while :; do sleep 1; done");
    mr_run run = run_of(EVENTS, SECOND / 4);
    const char *const words[] = {"position 1 ", NULL};
    fails_run(f, &run, 0, MR_E_IO, true, words);
}

static void *cancel_soon(void *flag)
{
    usleep(100000);
    atomic_store((atomic_bool *)flag, true);
    return NULL;
}

static void cancelled(void **state)
{
    fixture *f = *state;
    shell(f, "sleep 600");
    atomic_bool flag = false;
    mr_run run = run_of(10, LONG);
    run.cancelled = &flag;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &flag), 0);
    const char *const words[] = {"cancelled", NULL};
    fails_run(f, &run, 0, MR_E_CANCELLED, true, words);
    (void)pthread_join(thread, NULL);
}

static void garbage(void **state)
{
    fixture *f = *state;
    python(f, "    if p == 2 and first('g'): out('Hello \\x1b[31m world\\n')\n"
              "    else: say(ok=True)\n");
    fails(f, 5, 1, MR_E_HANDLER, true, "is not JSON", "position 2", "\"Hello \\u001b[31m world\"");
    talks(f, 5);
    python(f, "    out('{\"ok\": false}\\n')\n");
    fails(f, 5, 0, MR_E_HANDLER, true, "neither");
}

static void out_of_order(void **state)
{
    fixture *f = *state;
    python(f, "    say(ok=True, position=p if p != 3 else 4)\n");
    fails(f, 5, 2, MR_E_HANDLER, true, "out of order: position 4 where 3 was due");
    /* Answers before there is a question. */
    shell(f, "echo '{\"ok\":true}'; cat >/dev/null");
    mr_run run = run_of(1, LONG);
    size_t good = 0;
    mr_answers *answers = NULL;
    mr_error *error = f->handler->talk(f->handler, &run, &good, NULL, &answers);
    f->handler->forget(answers);
    mr_error_free(error); /* good or not: it depends on who is first */
    /* One answer too many is found before the next batch. */
    python(f, "    say(ok=True)\n"
              "    if p == 5 and first('twice'): out('{\"ok\":true}\\n'); say(log='said it')\n");
    talks(f, 5);
    mr_run again = run_of(5, LONG);
    good = 7;
    answers = NULL;
    for (int64_t until = mr__clock_now(&mr__clock_system) + SECOND / 2;
         mr__clock_now(&mr__clock_system) < until; usleep(1000))
        if (logged(f, "said it"))
            break;
    error = f->handler->talk(f->handler, &again, &good, NULL, &answers);
    assert_non_null(error);
    assert_non_null(strstr(mr_error_message(error), "out of order"));
    assert_int_equal(good, 0);
    mr_error_free(error);
    f->handler->forget(answers);
    talks(f, 5);
}

static void endless_line(void **state)
{
    fixture *f = *state;
    python(f, "    if p == 2 and first('long'): out('x' * 100 * 2**20)\n"
              "    say(ok=True)\n");
    fails(f, 5, 1, MR_E_HANDLER, true, "bytes without a newline", "position 2");
    talks(f, 5);
}

static void closes_its_stdin(void **state)
{
    fixture *f = *state;
    shell(f, "read -r line; echo '{\"ok\":true}'; exec <&-; sleep 600");
    fails(f, EVENTS, 1, MR_E_HANDLER, true, "closed its standard input");
}

static void too_much_sql(void **state)
{
    fixture *f = *state;
    python(f, "    say(ok=True, sql=[{'text': 'x' * 10 * 2**20}])\n");
    fails(f, 8, 6, MR_E_HANDLER, true, "64 MiB");
    talks(f, 2);
}

/* Each failure doubles the wait for the next start, and a good answer ends that. */
static void restarts_with_backoff(void **state)
{
    fixture *f = *state;
    shell(f, "exit 1");
    int64_t began = mr__clock_now(&mr__clock_system);
    for (int i = 0; i < 4; i++)
        fails(f, 1, 0, MR_E_IO, true, "exited");
    assert_true(mr__clock_now(&mr__clock_system) - began >= 700000); /* 100 + 200 + 400 ms */
    assert_int_equal(started(f), 4);
    /* A short deadline is not spent on waiting alone. */
    mr_run run = run_of(1, SECOND);
    const char *const words[] = {"exited", NULL};
    fails_run(f, &run, 0, MR_E_IO, true, words);
    assert_int_equal(started(f), 5);
}

static void ends_are_polite(void **state)
{
    fixture *f = *state;
    python(f, "    say(ok=True)\n"
              "print('bye', file=sys.stderr, flush=True)\n");
    talks(f, 1);
    int64_t began = mr__clock_now(&mr__clock_system);
    mr__handler_free(f->handler);
    f->handler = NULL;
    assert_true(mr__clock_now(&mr__clock_system) - began < 2 * SECOND);
    assert_true(logged(f, "line=bye")); /* it saw the end of its input */
    shell(f, "trap 'echo terminated >&2; exit' TERM; echo '{\"log\":\"up\"}'; read -r x;"
             "echo '{\"ok\":true}'; while :; do sleep 0.05; done");
    talks(f, 1);
    mr__handler_free(f->handler);
    f->handler = NULL;
    assert_true(logged(f, "line=terminated"));
}

/* ---- Several batches at once --------------------------------------------------------------- */

typedef struct slot {
    fixture *f;
    int failed;
} slot;

static void *run_slot(void *user)
{
    slot *s = user;
    for (int i = 0; i < 10; i++) {
        mr_run run = run_of(50, LONG);
        size_t good = 0;
        mr_answers *answers = NULL;
        mr_error *error = s->f->handler->talk(s->f->handler, &run, &good, NULL, &answers);
        s->failed += error != NULL;
        mr_error_free(error);
        s->f->handler->forget(answers);
    }
    return NULL;
}

static void slots_share_a_handler(void **state)
{
    fixture *f = *state;
    python(f, "    if n == 120 and first('once'): os._exit(9)\n"
              "    print('chat', file=sys.stderr, flush=True)\n"
              "    say(ok=True, position=p)\n");
    talks(f, 1);
    pthread_t threads[4];
    slot slots[4];
    for (size_t i = 0; i < 4; i++) {
        slots[i] = (slot){.f = f};
        assert_int_equal(pthread_create(&threads[i], NULL, run_slot, &slots[i]), 0);
    }
    int failed = 0;
    for (size_t i = 0; i < 4; i++) {
        (void)pthread_join(threads[i], NULL);
        failed += slots[i].failed;
    }
    assert_int_equal(failed, 1); /* the batch of the child that fell, and no other */
    assert_in_range(started(f), 2, 5);
}

int main(void)
{
#define WITH_FIXTURE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_FIXTURE(one_child_for_many_batches),
        WITH_FIXTURE(answers_carry_sql),
        WITH_FIXTURE(large_events_and_answers),
        WITH_FIXTURE(logs_and_stderr),
        WITH_FIXTURE(chatty_while_idle),
        WITH_FIXTURE(an_idle_child_that_leaves),
        WITH_FIXTURE(refusals),
        WITH_FIXTURE(a_retry_goes_one_by_one),
        WITH_FIXTURE(deliveries),
        WITH_FIXTURE(broken_starts),
        WITH_FIXTURE(crashes),
        WITH_FIXTURE(hangs),
        WITH_FIXTURE(who_fell_it),
        WITH_FIXTURE(who_was_refused),
        WITH_FIXTURE(deaf_and_stubborn),
        WITH_FIXTURE(cancelled),
        WITH_FIXTURE(garbage),
        WITH_FIXTURE(out_of_order),
        WITH_FIXTURE(endless_line),
        WITH_FIXTURE(closes_its_stdin),
        WITH_FIXTURE(too_much_sql),
        WITH_FIXTURE(restarts_with_backoff),
        WITH_FIXTURE(ends_are_polite),
        WITH_FIXTURE(slots_share_a_handler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
