/* Row of many consumers at the head: sixteen in one worker beside one, under the same appends. */
#include "bench.h"

#include <stdio.h>

enum { APPEND_SIZE = 500 };

typedef struct outcome {
    double seconds, after; /* from the first append; from the last one's commit */
    int64_t rows;
} outcome;

/* From the first append to the last checkpoint, with the worker already waiting at the head. */
static outcome follow(bench *b, const char *name, int consumers, int64_t events)
{
    static int64_t appended; /* streams of their own for each call */
    bench_background background;
    bench_consumer ours = {
        .name = name, .on_event = bench_nothing, .start = -1, .count = consumers};
    bench_background_start(&background, bench_worker(b, &ours, false));
    /* A first event: every executor that will work has its connection after it. */
    bench_generate(b->conn, "Live", appended + 1, appended + 1);
    appended++;
    bench_wait_metric(background.worker, "events_handled", consumers);
    int64_t rows = mr_worker_metric(background.worker, "log_rows_read");
    double start = bench_now();
    for (int64_t sent = 0; sent < events; sent += APPEND_SIZE)
        bench_generate(b->conn, "Live", appended + sent + 1, appended + sent + APPEND_SIZE);
    appended += events;
    double last = bench_now();
    bench_wait_metric(background.worker, "events_handled", consumers * (events + 1));
    double end = bench_now();
    outcome result = {.seconds = end - start,
                      .after = end - last,
                      .rows = mr_worker_metric(background.worker, "log_rows_read") - rows};
    bench_background_stop(&background);
    return result;
}

void bench_shared(bench *b)
{
    int64_t events = b->quick ? 30000 : 100000;
    bench_row wall = {.name = "shared",
                      .what = "16 consumers at the head, one worker: wall time",
                      .beside = "1 consumer, the same appends (500 events a transaction)",
                      .unit = "s",
                      .runs = b->runs,
                      .need = BENCH_AT_MOST,
                      .limit = 3};
    bench_row rows = wall;
    rows.what = "the same: log rows read";
    rows.unit = "rows";
    rows.limit = 1.2;
    bench_row after = wall;
    after.what = "the same: from the last commit on";
    after.unit = "ms";
    after.need = BENCH_INFO;
    for (int i = 0; i < b->runs; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "shared16_%d", i);
        outcome many = follow(b, name, 16, events);
        (void)snprintf(name, sizeof(name), "shared1_%d", i);
        outcome one = follow(b, name, 1, events);
        wall.ours[i] = many.seconds;
        wall.theirs[i] = one.seconds;
        after.ours[i] = many.after * 1000;
        after.theirs[i] = one.after * 1000;
        rows.ours[i] = (double)many.rows;
        rows.theirs[i] = (double)one.rows;
    }
    bench_report_row(b, &wall);
    bench_report_row(b, &rows);
    bench_report_row(b, &after);
}
