/* Rows of latency: from commit to handler while busy and while idle, and behind 200 positions that
 * were rolled back. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES_MOST = 4000 };

/* Times of one event by its number in the run, in microseconds since some moment; 0 = not yet. */
typedef struct samples {
    _Atomic int64_t handled[SAMPLES_MOST];
    int64_t committed[SAMPLES_MOST];
    int count;
} samples;

static int64_t micros(void)
{
    return (int64_t)(bench_now() * 1e6);
}

static mr_error *stamp(mr_tx *tx, const mr_event *event, void *user)
{
    (void)tx;
    samples *s = user;
    int64_t number = mr_event_aggregate_version(event) - 1;
    if (number >= 0 && number < SAMPLES_MOST)
        atomic_store(&s->handled[number], micros());
    return NULL;
}

typedef struct appender {
    PGconn *conn;
    mr_log *log;
    mr_draft *draft;
    const char *stream, *channel;
} appender;

static void append_one(appender *a, samples *s)
{
    mr_draft_clear(a->draft);
    bench_must(mr_draft_stream(a->draft, "Wake", a->stream, MR_EXPECT_ANY), "draft");
    bench_must(mr_draft_event(a->draft, "Woken", "{}", 2), "draft");
    bench_must(mr_append(a->conn, a->log, a->draft), "appending");
    s->committed[s->count++] = micros();
    if (a->channel != NULL)
        bench_must(mr_log_notify(a->conn, a->channel, mr_draft_position(a->draft, 0)), "notify");
}

static void open_appender(const bench *b, appender *a, const char *stream)
{
    *a = (appender){.conn = bench_connect(b, "bench append"), .stream = stream};
    a->draft = mr_draft_new();
    bench_must(mr_log_open(a->conn, NULL, &a->log), "opening the log");
}

static void close_appender(appender *a)
{
    mr_draft_free(a->draft);
    mr_log_free(a->log);
    PQfinish(a->conn);
}

/* Milliseconds from commit to handler; less than nothing counts as nothing: the worker may see the
 * commit before the appender hears of it. */
static double *latencies(const samples *s)
{
    double *out = calloc((size_t)s->count + 1, sizeof(*out));
    if (out == NULL)
        bench_die("no memory");
    for (int i = 0; i < s->count; i++) {
        int64_t took = atomic_load(&s->handled[i]) - s->committed[i];
        out[i] = took > 0 ? (double)took / 1000 : 0;
    }
    return out;
}

/* ---- wake ---------------------------------------------------------------------------------- */

typedef struct wake {
    const char *stream, *what, *channel;
    int count;
    double least;    /* pauses between this and twice as many seconds */
    double p99_most; /* milliseconds; 0 = no need */
} wake;

static void wake_row(bench *b, const wake *w)
{
    samples *s = calloc(1, sizeof(*s));
    if (s == NULL)
        bench_die("no memory");
    bench_consumer ours = {
        .name = w->stream, .on_event = stamp, .user = s, .start = -1, .channel = w->channel};
    bench_background background;
    appender a;
    open_appender(b, &a, w->stream);
    a.channel = w->channel;
    bench_background_start(&background, bench_worker(b, &ours, false));
    append_one(&a, s); /* the first opens connections and does not count */
    bench_wait_metric(background.worker, "events_handled", 1);
    for (int i = 0; i < w->count; i++) {
        bench_sleep(w->least * (1 + (double)(random() % 1000) / 1000));
        append_one(&a, s);
    }
    bench_wait_metric(background.worker, "events_handled", w->count + 1);
    bench_background_stop(&background);
    close_appender(&a);
    double *times = latencies(s);
    char line[80];
    (void)snprintf(line, sizeof(line), "%s: p50", w->what);
    bench_report_value(b, "wake", line, bench_quantile(times + 1, w->count, 0.5), "ms");
    /* Of a few samples the 99th percentile is the greatest one, so it is called that. */
    (void)snprintf(line, sizeof(line), "%s: %s", w->what, w->count < 200 ? "max" : "p99");
    bench_row row = {.name = "wake",
                     .what = line,
                     .unit = "ms",
                     .ours = {bench_quantile(times + 1, w->count, 0.99)},
                     .runs = 1,
                     .alone = true,
                     .need = w->p99_most > 0 ? BENCH_AT_MOST : BENCH_INFO,
                     .limit = w->p99_most};
    bench_report_row(b, &row);
    free(times);
    free(s);
}

void bench_wake(bench *b)
{
    int busy = b->quick ? 500 : SAMPLES_MOST / 2;
    wake_row(b, &(wake){.stream = "wake_busy",
                        .what = "commit to handler, poll, an event in 2-4 ms",
                        .count = busy,
                        .least = 0.002,
                        .p99_most = 50});
    wake_row(b, &(wake){.stream = "wake_notify",
                        .what = "commit to handler, notify, an event in 2-4 ms",
                        .channel = "bench_wake",
                        .count = busy,
                        .least = 0.002,
                        .p99_most = 10});
    wake_row(b, &(wake){.stream = "wake_idle",
                        .what = "commit to handler, poll, after 2-4 s quiet",
                        .count = b->quick ? 4 : 20,
                        .least = 2});
    bench_report_value(b, "wake", "the reference looks every", 200, "ms");
}

/* ---- settle -------------------------------------------------------------------------------- */

void bench_settle(bench *b)
{
    enum { HOLES = 200 };
    samples *s = calloc(1, sizeof(*s));
    if (s == NULL)
        bench_die("no memory");
    bench_consumer ours = {.name = "settle", .on_event = stamp, .user = s, .start = -1};
    bench_background background;
    appender a;
    open_appender(b, &a, "settle");
    bench_background_start(&background, bench_worker(b, &ours, false));
    append_one(&a, s);
    bench_wait_metric(background.worker, "events_handled", 1);
    for (int run = 0; run < b->runs; run++) {
        for (int i = 0; i < HOLES; i++) {
            bench_exec(a.conn, "BEGIN", 0, NULL);
            bench_exec(a.conn,
                       "SELECT global_position FROM millrace.append('Lost', 'settle', -1,"
                       " '{\"type\": \"Lost\"}')",
                       0, NULL);
            bench_exec(a.conn, "ROLLBACK", 0, NULL);
        }
        append_one(&a, s);
        bench_wait_metric(background.worker, "events_handled", run + 2);
    }
    bench_background_stop(&background);
    close_appender(&a);
    double *times = latencies(s);
    bench_row row = {.name = "settle",
                     .what = "commit to handler behind 200 rolled-back positions",
                     .unit = "ms",
                     .runs = b->runs,
                     .alone = true,
                     .need = BENCH_AT_MOST,
                     .limit = 1000};
    memcpy(row.ours, times + 1, (size_t)b->runs * sizeof(*times));
    bench_report_row(b, &row);
    free(times);
    free(s);
}
