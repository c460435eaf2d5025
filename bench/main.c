/* millrace-bench: what Millrace costs, each figure beside its limit in the same run. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    void (*run)(bench *b);
    const char *what;
} rows[] = {
    {"catch-up", bench_catchup, "an empty C handler from the log's beginning to its head"},
    {"handler", bench_handler, "a C handler with one upsert an event"},
    {"sql-batch", bench_sql_batch, "one set-based statement a batch"},
    {"shared", bench_shared, "16 consumers at the head in one worker"},
    {"append", bench_append, "appends of 100 events"},
    {"memory", bench_memory, "a worker with 100 idle consumers"},
    {"notify", bench_notify, "what NOTIFY costs 32 appenders"},
    {"wake", bench_wake, "from commit to handler"},
    {"settle", bench_settle, "200 rolled-back positions in a row"},
    {"fail-over", bench_failover, "a killed worker's consumer moves"},
    {"poison", bench_poison, "one bad event among 100,000 becomes a dead letter"},
    {"queue", bench_queue, "jobs claimed and completed on a user's own table"},
    {"held", bench_held, "built-in jobs while a snapshot stays open"},
};
enum { ROW_COUNT = sizeof(rows) / sizeof(rows[0]) };

static int usage(FILE *out)
{
    (void)fputs("usage: millrace-bench [--json] [--quick] [--runs N] [--database URI] [ROW...]\n"
                "The database must be empty; MILLRACE_TEST_DATABASE names it otherwise.\n\n",
                out);
    for (int i = 0; i < ROW_COUNT; i++)
        (void)fprintf(out, "  %-10s %s\n", rows[i].name, rows[i].what);
    return out == stdout ? 0 : 2;
}

static int find_row(const char *name)
{
    for (int i = 0; i < ROW_COUNT; i++)
        if (strcmp(rows[i].name, name) == 0)
            return i;
    return -1;
}

/* Reads the arguments; the exit code, or -1 to go on. */
static int parse(bench *b, bool chosen[ROW_COUNT], int argc, char **argv)
{
    bool any = false;
    for (int i = 1; i < argc; i++) {
        int row = find_row(argv[i]);
        if (strcmp(argv[i], "--json") == 0)
            b->json = true;
        else if (strcmp(argv[i], "--quick") == 0)
            b->quick = true;
        else if (strcmp(argv[i], "--help") == 0)
            return usage(stdout);
        else if (strcmp(argv[i], "--runs") == 0 && i + 1 < argc)
            b->runs = (int)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--database") == 0 && i + 1 < argc)
            b->conninfo = argv[++i];
        else if (row >= 0)
            any = chosen[row] = true;
        else
            return usage(stderr);
    }
    for (int i = 0; i < ROW_COUNT && !any; i++)
        chosen[i] = true;
    if (b->runs == 0)
        b->runs = b->quick ? 3 : 5;
    return b->runs < 1 || b->runs > BENCH_RUNS_MOST ? usage(stderr) : -1;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "--idle-worker") == 0)
        return bench_memory_child(argv[2], argv[3], argv[4]);
    if (argc > 1 && strcmp(argv[1], "jobs") == 0)
        return bench_jobs(argc - 1, argv + 1);
    bench b = {.conninfo = getenv("MILLRACE_TEST_DATABASE")};
    bool chosen[ROW_COUNT] = {false};
    int code = parse(&b, chosen, argc, argv);
    if (code >= 0)
        return code;
    if (b.conninfo == NULL)
        bench_die("no database: use ./dev bench, or --database with an empty one");
    b.conn = bench_connect(&b, "millrace-bench");
    bench_schema(&b);
    bench_report_begin(&b);
    for (int i = 0; i < ROW_COUNT; i++)
        if (chosen[i])
            rows[i].run(&b);
    bench_report_end(&b);
    PQfinish(b.conn);
    return b.failed == 0 ? 0 : 1;
}
