/* The parts of `millrace demo`: writers, workers, the view and the final count. */
#ifndef MILLRACE_CLI_DEMO_H
#define MILLRACE_CLI_DEMO_H

#include "cli.h"

#include <stdatomic.h>
#include <sys/types.h>

enum { DEMO_CONSUMERS = 4, DEMO_WRITERS = 12, DEMO_MAX_WORKERS = 8 };

typedef struct demo_consumer {
    const char *name, *kind;
} demo_consumer;
extern const demo_consumer demo_consumers[DEMO_CONSUMERS];

/* What the writers did, counted by themselves; in events. */
typedef struct demo_tally {
    _Atomic int64_t committed, rolled_back, transactions;
} demo_tally;

/* demo_writer.c: threads with a connection each. */
typedef struct demo_writers demo_writers;
mr_error *demo_writers_start(const char *uri, demo_tally *tally, demo_writers **out) MR_MUST_CHECK;
/* Lets each finish its transaction; gives the first error of any of them. Frees. */
mr_error *demo_writers_stop(demo_writers *writers) MR_MUST_CHECK;
bool demo_writers_failed(const demo_writers *writers);

/* demo_worker.c: worker processes, children of this one. */
typedef struct demo_workers {
    pid_t pid[DEMO_MAX_WORKERS]; /* 0 when it has ended */
    char *log[DEMO_MAX_WORKERS];
    int count;
} demo_workers;
mr_error *demo_workers_start(demo_workers *workers, const char *directory, const char *yaml,
                             int count) MR_MUST_CHECK;
/* An error with the end of its log when one ended by itself. */
mr_error *demo_workers_check(demo_workers *workers) MR_MUST_CHECK;
/* Asks all to stop and waits; kills what does not. Safe to call again. */
void demo_workers_stop(demo_workers *workers);

/* demo_check.c: what the tables say. */
typedef struct demo_counts {
    int64_t committed; /* rows of the log */
    int64_t handled[DEMO_CONSUMERS];
    int64_t least;         /* of `handled` */
    int64_t lost, doubled; /* over all consumers */
    int64_t disorder;      /* rows handled before a lower position */
    int64_t holes;         /* settled so far, by all consumers */
} demo_counts;
mr_error *demo_prepare(PGconn *conn, const mr_conf *conf) MR_MUST_CHECK;
/* Cheap: `handled` and `holes` only. */
mr_error *demo_count(PGconn *conn, demo_counts *counts) MR_MUST_CHECK;
mr_error *demo_verify(PGconn *conn, demo_counts *counts) MR_MUST_CHECK;

/* demo_view.c: the terminal, or plain lines when there is none. */
typedef struct demo_view {
    bool terminal;
    int drawn; /* lines on the screen */
    int64_t begin, last_line, last_ms, last_committed;
    double rate;
} demo_view;
void demo_view_start(demo_view *view);
void demo_view_show(demo_view *view, const char *phase, const demo_tally *tally,
                    const demo_counts *counts, int workers);
void demo_view_end(demo_view *view);

#endif
