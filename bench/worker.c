/* Workers as the benchmark runs them: through the public API, to the end or in the background. */
#include "bench.h"

#include <inttypes.h>
#include <stdio.h>

static void on_log(void *user, mr_level level, const char *line)
{
    bool expected = user != NULL;
    if (level >= MR_WARN && !expected)
        (void)fprintf(stderr, "bench: worker: %s\n", line);
}

mr_error *bench_nothing(mr_tx *tx, const mr_event *event, void *user)
{
    (void)tx;
    (void)event;
    (void)user;
    return NULL;
}

static void set(mr_conf *conf, const char *name, const char *value)
{
    bench_must(mr_conf_set(conf, name, value), name);
}

static void add_consumer(mr_conf *conf, const bench_consumer *wanted, int index)
{
    char name[64], start[24];
    if (wanted->count > 0)
        (void)snprintf(name, sizeof(name), "%s_%d", wanted->name, index);
    else
        (void)snprintf(name, sizeof(name), "%s", wanted->name);
    (void)snprintf(start, sizeof(start), "%" PRId64, wanted->start);
    mr_consumer *consumer = mr_consumer_new(name);
    if (consumer == NULL)
        bench_die("no memory");
    bench_must(mr_consumer_set(consumer, "start_from", wanted->start < 0 ? "now" : start), name);
    if (wanted->sql_batch != NULL)
        bench_must(mr_consumer_set(consumer, "sql_batch", wanted->sql_batch), name);
    else
        mr_consumer_on_event(consumer, wanted->on_event, wanted->user, NULL);
    if (wanted->on_failure != NULL)
        bench_must(mr_consumer_set(consumer, "on_failure", wanted->on_failure), name);
    bench_must(mr_conf_take_consumer(conf, consumer), name);
}

mr_worker *bench_worker(const bench *b, const bench_consumer *consumer, bool once)
{
    char batch[24];
    (void)snprintf(batch, sizeof(batch), "%d", BENCH_BATCH);
    mr_conf *conf = mr_conf_new();
    if (conf == NULL)
        bench_die("no memory");
    static char failures_expected;
    mr_conf_on_log(conf, on_log, consumer->on_failure != NULL ? &failures_expected : NULL);
    set(conf, "database", b->conninfo);
    set(conf, "batch_size", batch);
    set(conf, "log_level", "warn");
    set(conf, "once", once ? "true" : "false");
    if (consumer->channel != NULL) {
        set(conf, "dispatcher_strategy", "notify");
        set(conf, "notify_channel", consumer->channel);
    }
    for (int i = 0; i == 0 || i < consumer->count; i++)
        add_consumer(conf, consumer, i);
    mr_worker *worker = NULL;
    bench_must(mr_worker_new(conf, &worker), "making a worker");
    return worker;
}

double bench_drain(const bench *b, const bench_consumer *consumer)
{
    mr_worker *worker = bench_worker(b, consumer, true);
    double start = bench_now();
    bench_must(mr_worker_run(worker), "running a worker");
    double took = bench_now() - start;
    if (consumer->on_failure == NULL && mr_worker_metric(worker, "batches_failed") != 0)
        bench_die("%s: batches failed, so its time means nothing", consumer->name);
    mr_worker_free(worker);
    return took;
}

static void *run(void *argument)
{
    bench_must(mr_worker_run(argument), "running a worker");
    return NULL;
}

void bench_background_start(bench_background *background, mr_worker *worker)
{
    background->worker = worker;
    /* Started here, so that new consumers know their place before this returns. */
    bench_must(mr_worker_start(worker), "starting a worker");
    if (pthread_create(&background->thread, NULL, run, worker) != 0)
        bench_die("cannot start a thread");
}

void bench_background_stop(bench_background *background)
{
    mr_worker_stop(background->worker);
    (void)pthread_join(background->thread, NULL);
    mr_worker_free(background->worker);
}

void bench_wait_metric(const mr_worker *worker, const char *metric, int64_t value)
{
    enum { PATIENCE = 300 };
    double until = bench_now() + PATIENCE;
    while (mr_worker_metric(worker, metric) < value) {
        if (bench_now() > until)
            bench_die("%s stayed at %" PRId64 " of %" PRId64, metric,
                      mr_worker_metric(worker, metric), value);
        bench_sleep(0.0005);
    }
}
