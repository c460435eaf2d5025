/* Millrace's side of `./dev bench peers`: the built-in jobs, by the same commands as the peers'
 * scripts in bench/peers, and with the same line of figures. bench/peers.py says what each `what`
 * means. */
#include "bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum {
    JOBS_AT_ONCE = 20000, /* in one call that enqueues many */
    JOBS_WARM_UP = 100,   /* the first of the open loop open connections; they do not count */
    JOBS_PAYLOAD = 32     /* room for the 24 bytes of a payload */
};
static const double every = 0.010; /* seconds between two jobs of the open loop */
static const char *const queue_name = "bench";

/* What the command line asks for. */
typedef struct wanted {
    bench bench;
    const char *what, *mode;
    int64_t jobs;
} wanted;

typedef struct figures {
    double seconds, cpu_seconds;
    int64_t done;
    double p50, p99, most; /* ms; of latency only */
} figures;

/* ---- Jobs ------------------------------------------------------------------------------------ */

/* Exactly 24 bytes of JSON, of which the job's number is a part. */
static void job_payload(char out[JOBS_PAYLOAD], int64_t number)
{
    (void)snprintf(out, JOBS_PAYLOAD, "{\"n\":\"%016" PRId64 "\"}", number);
}

static int64_t job_number(const mr_job *job)
{
    const char *payload = mr_job_value(job, "payload");
    const char *digit = payload == NULL ? NULL : strpbrk(payload, "0123456789");
    return digit == NULL ? -1 : strtoll(digit, NULL, 10);
}

/* Enqueues the jobs from..to-1 in one call and one transaction. */
static void enqueue_jobs(PGconn *conn, mr_conf *conf, int64_t from, int64_t to)
{
    mr_job_draft *draft = mr_job_draft_new();
    if (draft == NULL)
        bench_die("no memory");
    for (int64_t i = from; i < to; i++) {
        char payload[JOBS_PAYLOAD];
        job_payload(payload, i);
        bench_must(mr_job_draft_add(draft, payload), "a job");
    }
    bench_must(mr_enqueue_many(conn, conf, queue_name, draft), "enqueueing");
    mr_job_draft_free(draft);
}

static void enqueue_all(PGconn *conn, int64_t jobs)
{
    mr_conf *conf = mr_conf_new();
    if (conf == NULL)
        bench_die("no memory");
    for (int64_t from = 0; from < jobs; from += JOBS_AT_ONCE)
        enqueue_jobs(conn, conf, from, from + JOBS_AT_ONCE < jobs ? from + JOBS_AT_ONCE : jobs);
    mr_conf_free(conf);
}

/* ---- The queue ------------------------------------------------------------------------------- */

static mr_conf *make_conf(const wanted *w, bool once, mr_job_fn handler, void *user)
{
    mr_conf *conf = mr_conf_new();
    mr_queue *queue = mr_queue_new(queue_name);
    if (conf == NULL || queue == NULL)
        bench_die("no memory");
    const char *mode = w->mode == NULL ? "lease" : w->mode;
    bool transaction = strncmp(mode, "transaction", strlen("transaction")) == 0;
    bench_must(mr_queue_set(queue, "mode", transaction ? "transaction" : "lease"), "mode");
    if (strstr(mode, "-delete") != NULL)
        bench_must(mr_queue_set(queue, "archive", "false"), "archive");
    /* As for jobs that take no time: many at once, whichever way. */
    bench_must(mr_queue_set(queue, "num_handlers", transaction ? "3" : "1"), "num_handlers");
    bench_must(mr_queue_set(queue, "look_ahead", "4000"), "look_ahead");
    bench_must(mr_queue_set(queue, "batch_size", "500"), "batch_size");
    mr_queue_on_job(queue, handler, user, NULL);
    bench_must(mr_conf_set(conf, "database", w->bench.conninfo), "database");
    bench_must(mr_conf_set(conf, "log_level", "warn"), "log_level");
    bench_must(mr_conf_set(conf, "once", once ? "true" : "false"), "once");
    bench_must(mr_conf_take_queue(conf, queue), "queue");
    return conf;
}

static mr_worker *make_worker(const wanted *w, bool once, mr_job_fn handler, void *user)
{
    mr_worker *worker = NULL;
    bench_must(mr_worker_new(make_conf(w, once, handler, user), &worker), "making a worker");
    return worker;
}

static mr_error *nothing(mr_job *job, void *user)
{
    (void)job;
    (void)user;
    return NULL;
}

/* Jobs that are not done, as the database counts them: the others are in the archive. */
static int64_t undone(const wanted *w)
{
    return bench_number(w->bench.conn, "SELECT count(*) FROM millrace.jobs WHERE queue = 'bench'");
}

/* ---- Time ------------------------------------------------------------------------------------ */

static double cpu_seconds(void)
{
    struct rusage used;
    (void)getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / BENCH_MILLION;
}

static void begin(figures *f)
{
    f->cpu_seconds = cpu_seconds();
    f->seconds = bench_now();
}

static void end(figures *f)
{
    f->seconds = bench_now() - f->seconds;
    f->cpu_seconds = cpu_seconds() - f->cpu_seconds;
}

/* ---- What can be asked for --------------------------------------------------------------------
 */

static void jobs_setup(wanted *w, figures *f)
{
    bench_schema(&w->bench);
    enqueue_all(w->bench.conn, w->jobs);
    f->done = undone(w);
}

static void jobs_enqueue(wanted *w, figures *f)
{
    begin(f);
    enqueue_all(w->bench.conn, w->jobs);
    end(f);
    f->done = undone(w);
}

/* The time includes the worker's connecting and its orderly stop. */
static void jobs_drain(wanted *w, figures *f)
{
    int64_t before = undone(w);
    bool by_hand = w->mode != NULL && strncmp(w->mode, "sql-", 4) == 0;
    mr_worker *worker = by_hand ? NULL : make_worker(w, true, nothing, NULL);
    if (worker != NULL)
        bench_must(mr_worker_start(worker), "starting a worker");
    begin(f);
    if (by_hand)
        bench_jobs_by_hand(&w->bench, queue_name, strcmp(w->mode, "sql-lease") == 0);
    else
        bench_must(mr_worker_run(worker), "running a worker");
    end(f);
    mr_worker_free(worker);
    f->done = before - undone(w);
}

typedef struct samples {
    _Atomic int64_t *started; /* microseconds; 0 = not yet */
    int64_t count;
    _Atomic int64_t seen;
} samples;

static int64_t micros(void)
{
    return (int64_t)(bench_now() * BENCH_MILLION);
}

static mr_error *stamp(mr_job *job, void *user)
{
    samples *s = user;
    int64_t number = job_number(job), unset = 0;
    if (number >= 0 && number < s->count &&
        atomic_compare_exchange_strong(&s->started[number], &unset, micros()))
        (void)atomic_fetch_add(&s->seen, 1);
    return NULL;
}

static void await_all(const samples *s)
{
    enum { PATIENCE = 60 };
    for (double until = bench_now() + PATIENCE; atomic_load(&s->seen) < s->count;) {
        if (bench_now() > until)
            bench_die("only %" PRId64 " of %" PRId64 " jobs were handled", atomic_load(&s->seen),
                      s->count);
        bench_sleep(0.005);
    }
}

/* A job each 10 ms by the clock, however long the earlier ones took to commit. */
static void produce(const wanted *w, int64_t *committed, int64_t count)
{
    PGconn *conn = bench_connect(&w->bench, "bench producer");
    mr_conf *conf = mr_conf_new();
    double start = bench_now();
    for (int64_t i = 0; i < count; i++) {
        double wait = start + (double)i * every - bench_now();
        if (wait > 0)
            bench_sleep(wait);
        enqueue_jobs(conn, conf, i, i + 1);
        committed[i] = micros();
        bench_must(mr_queue_wake(conn, conf, queue_name), "a wake-up");
    }
    mr_conf_free(conf);
    PQfinish(conn);
}

static void percentiles(figures *f, const samples *s, const int64_t *committed)
{
    int count = (int)s->count - JOBS_WARM_UP;
    double *times = calloc((size_t)count + 1, sizeof(*times));
    if (times == NULL)
        bench_die("no memory");
    for (int i = 0; i < count; i++) {
        int64_t took = atomic_load(&s->started[i + JOBS_WARM_UP]) - committed[i + JOBS_WARM_UP];
        times[i] = took > 0 ? (double)took / 1000 : 0; /* seen before the producer heard of it */
    }
    f->p50 = bench_quantile(times, count, 0.5);
    f->p99 = bench_quantile(times, count, 0.99);
    f->most = bench_quantile(times, count, 1);
    free(times);
}

static void jobs_latency(wanted *w, figures *f)
{
    samples s = {.count = w->jobs + JOBS_WARM_UP};
    s.started = calloc((size_t)s.count, sizeof(*s.started));
    int64_t *committed = calloc((size_t)s.count, sizeof(*committed));
    if (s.started == NULL || committed == NULL)
        bench_die("no memory");
    bench_background background;
    bench_background_start(&background, make_worker(w, false, stamp, &s));
    begin(f);
    produce(w, committed, s.count);
    await_all(&s);
    end(f);
    bench_background_stop(&background);
    percentiles(f, &s, committed);
    f->done = w->jobs - undone(w);
    free((void *)s.started);
    free(committed);
}

/* ---- The command ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(wanted *w, figures *f);
} whats[] = {{"setup", jobs_setup},
             {"enqueue", jobs_enqueue},
             {"drain", jobs_drain},
             {"latency", jobs_latency}};
enum { WHAT_COUNT = sizeof(whats) / sizeof(whats[0]) };

static int usage(void)
{
    (void)fputs(
        "usage: millrace-bench jobs --what setup|enqueue|drain|latency"
        " [--mode [sql-]lease[-delete]|[sql-]transaction[-delete]] [--jobs N] --database URI\n",
        stderr);
    return 2;
}

static void print(const wanted *w, const figures *f)
{
    (void)printf("{\"peer\":\"millrace\",\"what\":\"%s\",\"mode\":\"%s\",\"jobs\":%" PRId64
                 ",\"seconds\":%.6f,\"client_cpu_seconds\":%.6f,\"done\":%" PRId64,
                 w->what, w->mode == NULL ? "" : w->mode, w->jobs, f->seconds, f->cpu_seconds,
                 f->done);
    if (strcmp(w->what, "latency") == 0)
        (void)printf(",\"p50_ms\":%.4f,\"p99_ms\":%.4f,\"max_ms\":%.4f", f->p50, f->p99, f->most);
    (void)puts("}");
}

int bench_jobs(int argc, char **argv)
{
    wanted w = {0};
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc)
            return usage();
        if (strcmp(argv[i], "--what") == 0)
            w.what = argv[i + 1];
        else if (strcmp(argv[i], "--mode") == 0)
            w.mode = argv[i + 1];
        else if (strcmp(argv[i], "--jobs") == 0)
            w.jobs = strtoll(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--database") == 0)
            w.bench.conninfo = argv[i + 1];
        else
            return usage();
    }
    int what = 0;
    while (what < WHAT_COUNT && (w.what == NULL || strcmp(whats[what].name, w.what) != 0))
        what++;
    if (what == WHAT_COUNT || w.bench.conninfo == NULL || w.jobs < 0 || w.jobs > BENCH_MILLION)
        return usage();
    w.bench.conn = bench_connect(&w.bench, "millrace-bench");
    figures f = {0};
    whats[what].run(&w, &f);
    print(&w, &f);
    PQfinish(w.bench.conn);
    return 0;
}
