/* Child processes: what they may do to us, and that it stays with them. Real /bin/sh and python3.
 */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "base/clock.h"
#include "handler/child.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONG = 20000000 }; /* microseconds that nothing here takes */

/* Lines of stderr as they are said. */
typedef struct ear {
    pthread_mutex_t lock;
    int lines;
    size_t longest;
    char last[256];
} ear;

static void hear(void *user, const mr_child *child, const char *line)
{
    (void)child;
    ear *e = user;
    (void)pthread_mutex_lock(&e->lock);
    e->lines++;
    if (strlen(line) > e->longest)
        e->longest = strlen(line);
    (void)snprintf(e->last, sizeof(e->last), "%.200s", line);
    (void)pthread_mutex_unlock(&e->lock);
}

static mr_child *start_with(char *const *argv, const char *const *vars, ear *e)
{
    mr_child_spec spec = {.argv = argv, .vars = vars, .say = e == NULL ? NULL : hear, .user = e};
    mr_child *child = NULL;
    mr_error *error = mr__child_start(&spec, &child);
    if (error != NULL)
        fail_msg("%s", mr_error_message(error));
    return child;
}

static mr_child *shell(const char *script, ear *e)
{
    char *argv[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c", (char *)(uintptr_t)script,
                    NULL};
    return start_with(argv, NULL, e);
}

static mr_child *python(const char *script)
{
    char *argv[] = {(char *)(uintptr_t) "python3", (char *)(uintptr_t) "-c",
                    (char *)(uintptr_t)script, NULL};
    return start_with(argv, NULL, NULL);
}

static int64_t now(void)
{
    return mr__clock_now(&mr__clock_system);
}

/* The next line, waited for; the state when none comes. */
static mr_child_state next_line(mr_child *child, const char *out, size_t length, char *line,
                                size_t room)
{
    size_t sent = 0, n = 0;
    const char *found;
    size_t found_length;
    mr_child_state state = MR_CHILD_OPEN;
    for (int64_t until = now() + LONG; now() < until;) {
        if (mr__child_line(child, &found, &found_length)) {
            (void)snprintf(line, room, "%.*s", (int)found_length, found);
            return MR_CHILD_OPEN;
        }
        if (state != MR_CHILD_OPEN)
            return state;
        state = mr__child_pump(child, out + sent, length - sent, 50, &n);
        sent += n;
    }
    fail_msg("no line in time");
    return state;
}

static void expect_line(mr_child *child, const char *say, const char *wanted)
{
    char line[8192] = "";
    mr_child_state state = next_line(child, say, strlen(say), line, sizeof(line));
    assert_int_equal(state, MR_CHILD_OPEN);
    assert_string_equal(line, wanted);
}

static void fate_is(mr_child *child, const char *wanted)
{
    mr_buf fate = {0};
    mr__child_fate(child, &fate);
    assert_string_equal(mr__buf_text(&fate), wanted);
    mr__buf_free(&fate);
}

/* ---- Starting ------------------------------------------------------------------------------ */

static void echoes(void **state)
{
    (void)state;
    mr_child *child = shell("while read -r line; do echo \"got $line\"; done", NULL);
    expect_line(child, "one\n", "got one");
    expect_line(child, "two\nthree\n", "got two");
    expect_line(child, "", "got three");
    mr__child_close(child);
    assert_true(mr__child_await(child, 10000));
    assert_true(mr__child_kill(child));
    fate_is(child, "exited with status 0");
    mr__child_free(child);
}

static void cannot_start(const char *program, const char *why)
{
    char *argv[] = {(char *)(uintptr_t)program, NULL};
    mr_child_spec spec = {.argv = argv};
    mr_child *child = NULL;
    mr_error *error = mr__child_start(&spec, &child);
    assert_non_null(error);
    assert_int_equal(mr_error_code(error), MR_E_IO);
    assert_true(mr_error_retryable(error));
    if (strstr(mr_error_message(error), why) == NULL ||
        strstr(mr_error_message(error), program) == NULL)
        fail_msg("%s", mr_error_message(error));
    mr_error_free(error);
}

static void programs_that_are_none(void **state)
{
    (void)state;
    cannot_start("no-such-program-anywhere", "in PATH");
    cannot_start("./no/such/file", "No such file");
    cannot_start("/tmp", "Is a directory");
    cannot_start("/etc/passwd", "Permission denied");
    char path[] = "/tmp/mr-child-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "echo no first line\n", 19), 19);
    assert_int_equal(fchmod(fd, 0700), 0);
    (void)close(fd);
    cannot_start(path, "#!/bin/sh");
    (void)unlink(path);
}

static void environment(void **state)
{
    (void)state;
    char *argv[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c",
                    (char *)(uintptr_t) "echo \"$MR_TEST_A/$MR_TEST_B/${PATH:+path}\"", NULL};
    assert_int_equal(setenv("MR_TEST_B", "old", 1), 0);
    const char *const vars[] = {"MR_TEST_A=a b", "MR_TEST_B=new", NULL};
    mr_child *child = start_with(argv, vars, NULL);
    expect_line(child, "", "a b/new/path");
    mr__child_free(child);
}

static void on_signal(int number)
{
    (void)number;
}

/* The child sees three descriptors, no blocked and no ignored signal, and a group of its own. */
static void a_clean_start(void **state)
{
    (void)state;
    int leak =
        open("/dev/null", O_RDONLY); /* without close-on-exec, as a careless program has it */
    assert_true(leak >= 0);
    struct sigaction ignore = {.sa_handler = SIG_IGN}, handle = {.sa_handler = on_signal}, old[2];
    (void)sigaction(SIGPIPE, &ignore, &old[0]);
    (void)sigaction(SIGUSR1, &handle, &old[1]);
    sigset_t blocked, before;
    (void)sigemptyset(&blocked);
    (void)sigaddset(&blocked, SIGTERM);
    (void)sigaddset(&blocked, SIGUSR2);
    (void)pthread_sigmask(SIG_BLOCK, &blocked, &before);
    mr_child *child =
        python("import os, re\n"
               "fds = [int(f) for f in os.listdir('/proc/self/fd')]\n"
               "def there(fd):\n"
               "  try: os.fstat(fd); return True\n"
               "  except OSError: return False\n"
               "fds = [fd for fd in sorted(fds) if there(fd)]\n"
               "status = open('/proc/self/status').read()\n"
               "mask = [re.search(name + r':\\s*(\\w+)', status).group(1) for name in "
               "('SigBlk', 'SigIgn')]\n"
               "import signal\n"
               "print(fds, int(mask[0], 16), os.getpgrp() == os.getpid())\n");
    expect_line(child, "", "[0, 1, 2] 0 True");
    mr__child_free(child);
    child = shell("sed -n 's/^SigIgn:[[:space:]]*//p' /proc/self/status", NULL);
    expect_line(child, "", "0000000000000000");
    mr__child_free(child);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)sigaction(SIGPIPE, &old[0], NULL);
    (void)sigaction(SIGUSR1, &old[1], NULL);
    (void)close(leak);
}

static int count_fds(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void nothing_is_left_behind(void **state)
{
    (void)state;
    int before = count_fds();
    for (int i = 0; i < 10; i++) {
        mr_child *child = shell(i % 2 == 0 ? "cat" : "exit 3", NULL);
        mr__child_free(child);
        cannot_start("/etc/passwd", "Permission denied");
    }
    assert_int_equal(count_fds(), before);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no zombie */
    assert_int_equal(errno, ECHILD);
}

/* A program may run with its standard descriptors closed. */
static void without_standard_descriptors(void **state)
{
    (void)state;
    int kept = fcntl(0, F_DUPFD_CLOEXEC, 100);
    (void)close(0);
    mr_child *child = shell("read -r x; echo \"$x $x\"", NULL);
    expect_line(child, "yes\n", "yes yes");
    mr__child_free(child);
    assert_true(fcntl(0, F_GETFD) < 0);
    if (kept >= 0) {
        assert_int_equal(dup2(kept, 0), 0);
        (void)close(kept);
    }
}

/* ---- Ending -------------------------------------------------------------------------------- */

static void how_it_ended(void **state)
{
    (void)state;
    char line[16];
    mr_child *child = shell("exit 7", NULL);
    assert_int_equal(next_line(child, "", 0, line, sizeof(line)), MR_CHILD_ENDED);
    assert_true(mr__child_await(child, 10000));
    fate_is(child, "exited with status 7");
    mr__child_free(child);
    child = shell("kill -SEGV $$", NULL);
    assert_int_equal(next_line(child, "", 0, line, sizeof(line)), MR_CHILD_ENDED);
    assert_true(mr__child_await(child, 10000));
    fate_is(child, "was killed by signal 11 (Segmentation fault)");
    mr__child_free(child);
    child = shell("exec >&-; sleep 60", NULL);
    assert_int_equal(next_line(child, "", 0, line, sizeof(line)), MR_CHILD_ENDED);
    assert_false(mr__child_await(child, 0));
    fate_is(child, "closed its standard output");
    mr__child_free(child);
}

static void last_lines_are_not_lost(void **state)
{
    (void)state;
    char line[16];
    mr_child *child = shell("echo one; printf 'two\\r\\n'; printf three", NULL);
    expect_line(child, "", "one");
    expect_line(child, "", "two");
    assert_int_equal(next_line(child, "", 0, line, sizeof(line)), MR_CHILD_ENDED);
    assert_int_equal(mr__child_pending(child), 5);
    mr__child_free(child);
}

static void gone(pid_t pid)
{
    for (int64_t until = now() + LONG; kill(pid, 0) == 0; usleep(1000)) {
        /* Whoever adopts orphans here may not collect them. */
        char path[64], text[256] = "";
        (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
        FILE *file = fopen(path, "r");
        if (file == NULL)
            return;
        bool zombie = fgets(text, sizeof(text), file) != NULL && strstr(text, ") Z ") != NULL;
        (void)fclose(file);
        if (zombie)
            return;
        assert_true(now() < until);
    }
}

static void grandchildren_go_too(void **state)
{
    (void)state;
    char line[32] = "";
    mr_child *child = shell("sleep 600 & echo $!; exit 0", NULL);
    assert_int_equal(next_line(child, "", 0, line, sizeof(line)), MR_CHILD_OPEN);
    pid_t grandchild = (pid_t)strtol(line, NULL, 10);
    assert_true(grandchild > 1);
    mr__child_free(child);
    gone(grandchild);
}

static void *start_and_leave(void *out)
{
    *(mr_child **)out = shell("echo up; sleep 600", NULL);
    return NULL;
}

/* The kernel ends a child with the thread that started it: that is how it ends with a killed
 * process. */
static void ends_with_its_starter(void **state)
{
    (void)state;
    mr_child *child = NULL;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, start_and_leave, &child), 0);
    (void)pthread_join(thread, NULL);
    assert_true(mr__child_await(child, 10000));
    fate_is(child, "was killed by signal 9 (Killed)");
    mr__child_free(child);
}

/* ---- Pipes --------------------------------------------------------------------------------- */

static void sigpipe_stays_away(void **state)
{
    (void)state;
    struct sigaction standard = {.sa_handler = SIG_DFL}, old;
    (void)sigaction(SIGPIPE, &standard, &old);
    mr_child *child = shell("exec <&-; echo closed; sleep 60", NULL);
    expect_line(child, "", "closed");
    char *bytes = calloc(1, 1 << 20);
    size_t written = 1;
    for (int i = 0; i < 3; i++)
        (void)mr__child_pump(child, bytes, 1 << 20, 50, &written);
    assert_true(mr__child_deaf(child));
    sigset_t pending;
    (void)sigpending(&pending);
    assert_false(sigismember(&pending, SIGPIPE));
    free(bytes);
    mr__child_free(child);
    (void)sigaction(SIGPIPE, &old, NULL);
}

/* Both pipes full at once: a writer that does not read meanwhile would wait for ever. */
static void both_pipes_full(void **state)
{
    (void)state;
    enum { BYTES = 8 << 20, LINE = 1 << 16 };
    mr_child *child = shell("cat", NULL);
    char *bytes = malloc(BYTES);
    assert_non_null(bytes);
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = i % LINE == LINE - 1 ? '\n' : 'x';
    size_t sent = 0, back = 0, n;
    const char *line;
    size_t length;
    for (int64_t until = now() + LONG; back < BYTES;) {
        assert_int_equal(mr__child_pump(child, bytes + sent, BYTES - sent, 50, &n), MR_CHILD_OPEN);
        sent += n;
        while (mr__child_line(child, &line, &length)) {
            assert_int_equal(length, LINE - 1);
            back += length + 1;
        }
        assert_true(now() < until);
    }
    assert_int_equal(sent, BYTES);
    free(bytes);
    mr__child_free(child);
}

static long resident(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss; /* KiB, the most so far */
}

static void a_line_without_end(void **state)
{
    (void)state;
    char line[16];
    long before = resident();
    mr_child *child = shell("head -c 104857600 /dev/zero; echo", NULL);
    assert_int_equal(next_line(child, "", 0, line, sizeof(line)), MR_CHILD_TOO_LONG);
    assert_true(mr__child_pending(child) > MR_CHILD_LINE);
    assert_true(mr__child_pending(child) <= MR_CHILD_LINE + (64 << 10));
    mr__child_free(child);
    assert_true(resident() - before < 80 << 10);
}

static void a_long_line_that_ends(void **state)
{
    (void)state;
    mr_child *child = shell("head -c 16000000 /dev/zero | tr '\\0' x; echo; echo short", NULL);
    const char *line = NULL;
    size_t length = 0, n;
    for (int64_t until = now() + LONG; !mr__child_line(child, &line, &length);) {
        assert_int_equal(mr__child_pump(child, NULL, 0, 50, &n), MR_CHILD_OPEN);
        assert_true(now() < until);
    }
    assert_int_equal(length, 16000000);
    expect_line(child, "", "short");
    mr__child_free(child);
}

/* ---- stderr -------------------------------------------------------------------------------- */

static void words_are_heard(void **state)
{
    (void)state;
    ear e = {.lock = PTHREAD_MUTEX_INITIALIZER};
    mr_child *child = shell("echo first >&2; echo >&2; head -c 20000 /dev/zero | tr '\\0' x >&2;"
                            "echo >&2; printf 'no newline' >&2",
                            &e);
    for (int64_t until = now() + LONG; mr__child_listen(child);)
        assert_true(now() < until);
    assert_int_equal(e.lines, 3);
    assert_int_equal(e.longest, MR_CHILD_WORDS);
    assert_string_equal(e.last, "no newline");
    mr_buf words = {0};
    mr__child_words(child, &words);
    assert_string_equal(words.data, "no newline");
    assert_int_equal(mr__child_stderr(child), -1);
    mr__buf_free(&words);
    mr__child_free(child);
}

/* ---- Several at once ----------------------------------------------------------------------- */

static void *one_of_many(void *user)
{
    char say[32], wanted[32];
    mr_child *child = shell("while read -r line; do echo $line >&2; echo $line; done", user);
    for (int i = 0; i < 50; i++) {
        (void)snprintf(say, sizeof(say), "line %d\n", i);
        (void)snprintf(wanted, sizeof(wanted), "line %d", i);
        expect_line(child, say, wanted);
        (void)mr__child_listen(child);
    }
    mr__child_free(child);
    return NULL;
}

static void many_at_once(void **state)
{
    (void)state;
    ear e = {.lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t threads[8];
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, one_of_many, &e), 0);
    for (size_t i = 0; i < 8; i++)
        (void)pthread_join(threads[i], NULL);
    assert_true(e.lines > 0);
}

static void a_long_line_is_cut_between_characters(void **state)
{
    (void)state;
    ear e = {.lock = PTHREAD_MUTEX_INITIALIZER};
    mr_child *child = shell("printf x >&2; yes '\303\251' | head -n 8000 | tr -d '\\n' >&2", &e);
    for (int64_t until = now() + LONG; mr__child_listen(child);)
        assert_true(now() < until);
    assert_int_equal(e.longest, MR_CHILD_WORDS - 1);
    mr__child_free(child);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(echoes),
        cmocka_unit_test(programs_that_are_none),
        cmocka_unit_test(environment),
        cmocka_unit_test(a_clean_start),
        cmocka_unit_test(nothing_is_left_behind),
        cmocka_unit_test(without_standard_descriptors),
        cmocka_unit_test(how_it_ended),
        cmocka_unit_test(last_lines_are_not_lost),
        cmocka_unit_test(grandchildren_go_too),
        cmocka_unit_test(ends_with_its_starter),
        cmocka_unit_test(sigpipe_stays_away),
        cmocka_unit_test(both_pipes_full),
        cmocka_unit_test(a_line_without_end),
        cmocka_unit_test(a_long_line_that_ends),
        cmocka_unit_test(words_are_heard),
        cmocka_unit_test(a_long_line_is_cut_between_characters),
        cmocka_unit_test(many_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
