/* Row of memory: a process with 100 consumers that have caught up and wait. */
#include "bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    CONSUMERS = 100,
    EXECUTORS = 8,
    CAUGHT_UP = 5000, /* events each has handled before it is idle */
    SETTLE = 11,      /* seconds until an idle backend has passed on all it counted */
};

/* ---- The process that is measured ---------------------------------------------------------- */

int bench_memory_child(const char *conninfo, const char *consumers, const char *start)
{
    bench b = {.conninfo = conninfo};
    int count = (int)strtol(consumers, NULL, 10);
    bench_consumer ours = {.name = "idle",
                           .on_event = bench_nothing,
                           .start = strtoll(start, NULL, 10),
                           .count = count};
    bench_background background;
    bench_background_start(&background, bench_worker(&b, &ours, false));
    bench_wait_metric(background.worker, "events_handled", (int64_t)count * CAUGHT_UP);
    (void)puts("ready");
    (void)fflush(stdout);
    while (getchar() != EOF)
        continue;
    bench_background_stop(&background);
    return 0;
}

/* ---- The process that measures ------------------------------------------------------------- */

typedef struct child {
    pid_t pid;
    int in, out; /* to its standard input, from its standard output */
} child;

static child start_child(const bench *b, int64_t start)
{
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0)
        bench_die("cannot make a pipe");
    char consumers[16], from[24];
    (void)snprintf(consumers, sizeof(consumers), "%d", CONSUMERS);
    (void)snprintf(from, sizeof(from), "%" PRId64, start);
    pid_t pid = fork();
    if (pid < 0)
        bench_die("cannot start a process");
    if (pid == 0) {
        /* A new program, so that nothing of this one counts as its memory. */
        (void)dup2(in[0], STDIN_FILENO);
        (void)dup2(out[1], STDOUT_FILENO);
        (void)close(in[1]);
        (void)close(out[0]);
        (void)execl("/proc/self/exe", "millrace-bench", "--idle-worker", b->conninfo, consumers,
                    from, (char *)NULL);
        _exit(127);
    }
    (void)close(in[0]);
    (void)close(out[1]);
    return (child){.pid = pid, .in = in[1], .out = out[0]};
}

static double rss(pid_t pid)
{
    char path[64], line[256];
    (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    double kib = -1;
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, "VmRSS:", 6) == 0)
            kib = strtod(line + 6, NULL);
    if (file != NULL)
        (void)fclose(file);
    return kib / 1024;
}

/* Commits of this database a second, which an idle worker's statements are, one each. */
static double commits(const bench *b, double seconds)
{
    const char *sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
    PGconn *conn = bench_connect(b, "millrace-bench");
    int64_t before = bench_number(conn, sql);
    bench_sleep(seconds);
    int64_t after = bench_number(conn, sql);
    PQfinish(conn);
    return (double)(after - before) / seconds;
}

void bench_memory(bench *b)
{
    int64_t head = bench_log(b, CAUGHT_UP);
    double seconds = b->quick ? 5 : 15;
    bench_sleep(SETTLE);
    double without = commits(b, seconds);
    child c = start_child(b, head - CAUGHT_UP);
    char answer[16] = "";
    if (read(c.out, answer, sizeof(answer) - 1) <= 0 || strncmp(answer, "ready", 5) != 0)
        bench_die("the idle worker did not come up");
    bench_row row = {.name = "memory",
                     .what = "RSS of a process with 100 idle consumers",
                     .unit = "MiB",
                     .runs = 1,
                     .alone = true,
                     .need = BENCH_AT_MOST,
                     .limit = 60};
    row.ours[0] = rss(c.pid);
    bench_report_row(b, &row);
    bench_row connections = {.name = "memory",
                             .what = "its connections (2 + 8 executors)",
                             .unit = "",
                             .runs = 1,
                             .alone = true,
                             .need = BENCH_AT_MOST,
                             .limit = 2 + EXECUTORS};
    connections.ours[0] =
        (double)bench_number(b->conn, "SELECT count(*) FROM pg_stat_activity"
                                      " WHERE application_name LIKE 'millrace %-%-%'");
    bench_report_row(b, &connections);
    bench_sleep(SETTLE);
    double rate = commits(b, seconds) - without;
    bench_report_value(b, "memory", "its statements while idle", rate > 0 ? rate : 0, "/s");
    (void)close(c.in);
    (void)close(c.out);
    (void)waitpid(c.pid, NULL, 0);
}
