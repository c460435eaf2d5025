/* What the benchmark's files share: the run, helpers around the database and workers, the report.
 * Helpers end the process with a message when something fails: a benchmark has nothing to save. */
#ifndef MR_BENCH_H
#define MR_BENCH_H

#include "millrace/millrace.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    BENCH_RUNS_MOST = 16,
    BENCH_BATCH = 1000,     /* events a batch, on both sides of every row */
    BENCH_STREAMS = 10000,  /* streams the generated events are spread over */
    BENCH_MILLION = 1000000 /* microseconds a second, and the events of a full run */
};

typedef struct bench {
    const char *conninfo;
    bool quick, json;
    int runs; /* interleaved repetitions of each side */
    PGconn *conn;
    int64_t loaded; /* events generated so far by bench_log() */
    int failed;     /* rows that missed what they need */
    struct report *report;
} bench;

/* ---- time.c, figures ---- */
double bench_now(void); /* seconds, monotonic */
void bench_sleep(double seconds);
double bench_median(const double *values, int count);
/* The value below which `share` of them lie; sorts in place. */
double bench_quantile(double *values, int count, double share);

/* ---- db.c ---- */
_Noreturn void bench_die(const char *format, ...) MR_PRINTF(1, 2);
void bench_must(mr_error *error, const char *what);
PGconn *bench_connect(const bench *b, const char *application);
/* Runs a statement with text parameters, one round trip, not prepared; frees the result. */
void bench_exec(PGconn *conn, const char *sql, int count, const char *const *values);
/* The same, giving the rows. */
PGresult *bench_query(PGconn *conn, const char *sql, int count, const char *const *values);
int64_t bench_number(PGconn *conn, const char *sql); /* first column of the first row */
void bench_schema(bench *b);                         /* an empty database becomes ours */
/* Makes sure the log holds at least so many generated events; returns its head. */
int64_t bench_log(bench *b, int64_t events);
/* Adds events from..to to streams of that type, in one statement. */
void bench_generate(PGconn *conn, const char *stream_type, int64_t from, int64_t to);
/* Makes or resets a checkpoint for a loop written by hand. */
void bench_checkpoint(PGconn *conn, const char *consumer, int64_t position);

/* ---- worker.c: Millrace through its public API ---- */
typedef struct bench_consumer {
    const char *name;
    mr_event_fn on_event;
    void *user;
    const char *sql_batch;  /* instead of on_event */
    int64_t start;          /* position; -1 = the head */
    const char *channel;    /* listens there instead of only looking */
    const char *on_failure; /* NULL: no batch may fail */
    int count;              /* so many of them, named name_0 …; 0 = one, named name */
} bench_consumer;

mr_worker *bench_worker(const bench *b, const bench_consumer *consumer, bool once);
/* Runs a worker until it has drained the log; seconds it took, start and stop included. */
double bench_drain(const bench *b, const bench_consumer *consumer);

typedef struct bench_background {
    mr_worker *worker;
    pthread_t thread;
} bench_background;
void bench_background_start(bench_background *background, mr_worker *worker);
void bench_background_stop(bench_background *background);
/* Waits until a counter of the worker has reached a value. */
void bench_wait_metric(const mr_worker *worker, const char *metric, int64_t value);
/* An empty handler. */
mr_error *bench_nothing(mr_tx *tx, const mr_event *event, void *user);

/* ---- report.c ---- */
typedef enum bench_need { BENCH_INFO, BENCH_AT_LEAST, BENCH_AT_MOST } bench_need;

/* One line of the table. `ours` and `theirs` are the repetitions in the order they ran; the ratio
 * is the median of ours[i] / theirs[i]. Without `theirs` the need is on the median of `ours`. */
typedef struct bench_row {
    const char *name, *what, *beside, *unit;
    double ours[BENCH_RUNS_MOST], theirs[BENCH_RUNS_MOST];
    int runs;
    bool alone; /* there is no other side */
    bench_need need;
    double limit;
} bench_row;

void bench_report_begin(bench *b);
void bench_report_row(bench *b, const bench_row *row);
void bench_report_value(bench *b, const char *name, const char *what, double value,
                        const char *unit);
void bench_report_end(bench *b);

/* ---- the rows ---- */
void bench_catchup(bench *b);
void bench_handler(bench *b);
void bench_sql_batch(bench *b);
void bench_shared(bench *b);
void bench_append(bench *b);
void bench_memory(bench *b);
int bench_memory_child(const char *conninfo, const char *consumers, const char *start);
void bench_notify(bench *b);
void bench_wake(bench *b);
void bench_settle(bench *b);
void bench_failover(bench *b);
void bench_poison(bench *b);
void bench_queue(bench *b);
void bench_held(bench *b);

/* ---- jobs.c: one measurement beside a peer, as a command of its own ---- */
int bench_jobs(int argc, char **argv);
/* Drains a queue with Millrace's statements in plain loops. */
void bench_jobs_by_hand(const bench *b, const char *queue, bool lease);

#endif
