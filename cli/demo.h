/* The parts of `millrace demo`: writers, workers, the accident, the view and the final count. */
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
    int killed; /* index of the one killed on purpose, -1 = none */
} demo_workers;
mr_error *demo_workers_start(demo_workers *workers, const char *directory, const char *yaml,
                             int count) MR_MUST_CHECK;
/* An error with the end of its log when one ended by itself. */
mr_error *demo_workers_check(demo_workers *workers) MR_MUST_CHECK;
/* kill -9, and waits for its end. */
void demo_workers_kill(demo_workers *workers, int index);
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

/* demo_fleet.c: who owns what, by the program's own listings. Indices of workers; -1 = nobody. */
typedef struct demo_fleet {
    int owner[DEMO_CONSUMERS];
    int64_t checkpoint[DEMO_CONSUMERS];
    int leader;
    int alive; /* workers that are registered and well */
} demo_fleet;
mr_error *demo_fleet_read(PGconn *conn, const mr_conf *conf, const demo_workers *workers,
                          demo_fleet *fleet) MR_MUST_CHECK;

/* One worker is killed in the middle, and its consumers must go on elsewhere. */
typedef struct demo_accident {
    int64_t due, killed_at; /* cli_now_ms(); 0 = not planned, not yet */
    int64_t moved_ms;       /* from the kill to the first event handled elsewhere; 0 = not yet */
    int victim, moving;     /* worker; how many of its consumers are still on the way */
    pid_t pid;
    bool leader, owned[DEMO_CONSUMERS], taken[DEMO_CONSUMERS];
    int64_t taken_at[DEMO_CONSUMERS]; /* checkpoint when another worker was first seen to own it */
} demo_accident;
/* When it may happen: after `earliest_ms`, and late enough for the server. */
mr_error *demo_accident_plan(PGconn *conn, int64_t earliest_ms,
                             demo_accident *accident) MR_MUST_CHECK;
/* Kills when it is time, and watches. `*news` is what to tell, or NULL; free(). */
mr_error *demo_accident_step(demo_accident *accident, demo_workers *workers,
                             const demo_fleet *fleet, char **news) MR_MUST_CHECK;
/* Planned and not over yet. */
bool demo_accident_pending(const demo_accident *accident);

/* demo_view.c: the terminal, plain lines when there is none, or nothing. */
enum { DEMO_NOTES = 3 };
typedef struct demo_view {
    bool silent, terminal, color, utf8;
    int drawn; /* lines on the screen */
    int64_t begin, last_line, last_ms, last_committed;
    double rate;
    char *note[DEMO_NOTES];
    int notes, owner[DEMO_CONSUMERS]; /* owner: as told last */
} demo_view;
/* What there is to show. */
typedef struct demo_scene {
    const char *phase;
    const demo_tally *tally;
    const demo_counts *counts;
    const demo_workers *workers;
    const demo_fleet *fleet;
} demo_scene;
void demo_view_start(demo_view *view, bool silent);
void demo_view_show(demo_view *view, const demo_scene *scene);
/* Something happened; it stays on the screen. */
void demo_view_note(demo_view *view, const char *text);
void demo_view_end(demo_view *view);

#endif
